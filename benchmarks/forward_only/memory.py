"""Peak memory of a forward-only step, beside inference and beside a step with a backward pass.

Counts the bytes of all tensors that are alive at once, weights included, by watching every
operation of torch. (Scratch memory inside a kernel is not seen.) The count has no noise.
Run: ``python -m benchmarks.forward_only.memory``
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import l0arm

WIDTH, HEADS, LAYERS, ROWS, LENGTH = 256, 8, 6, 16, 128


class Block(nn.Module):
    """Attention and an MLP, each with a norm before it."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, length, 3, -1, WIDTH // HEADS)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, -1))
        result: Tensor = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return result


class Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages that operations return, while they live."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.peak = 0, 0
        self._known: set[int] = set()

    def add(self, value: object) -> None:
        """Count a tensor, unless its storage is counted already."""
        if not isinstance(value, Tensor):
            return
        storage = value.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        pytree.tree_map(self.add, result)
        return result


def peak(model: nn.Module, call: Callable[[], object]) -> int:
    """Bytes of all tensors at once, at most, while ``call`` runs."""
    call()  # what is made once only
    with Alive() as alive:
        for tensor in (*model.parameters(), *model.buffers()):
            alive.add(tensor.detach())
        call()
    found: int = alive.peak
    return found


def main() -> None:
    """Measure the three ways and print them."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.Linear(WIDTH, 10))
    x, y = torch.rand(ROWS, LENGTH, WIDTH), torch.arange(ROWS * LENGTH) % 10

    def data(network: nn.Module) -> Tensor:
        return F.cross_entropy(network(x).flatten(0, 1), y)

    found = {"inference": peak(model, torch.no_grad()(lambda: data(model)))}
    for initial in (0.95, 0.6):
        gated = l0arm.sparsify(model, example_inputs=x[:2], initial=initial, lam=0.0)
        for name, backward in (("forward-only", False), ("with backward", True)):

            def step(gated: l0arm.Gated = gated, backward: bool = backward) -> None:
                gated.loss(lambda: data(gated), backward=backward).backward()
                gated.zero_grad()

            found[f"{name}, gates open with {initial}"] = peak(gated, step)
        model = gated.release()
    for name, size in found.items():
        print(f"{name:36}{size / 2**20:7.1f} MiB, {size / found['inference']:.3f} of inference")


if __name__ == "__main__":
    main()
