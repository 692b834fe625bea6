"""A scratch copy of a gated model, in float64 where it runs so: zeroed by a draw, or cut by it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from l0arm.compaction.cutting import cut, plain_copy, select_inputs
from l0arm.compaction.dropout import NoDropout, without_dropout
from l0arm.compaction.inputs import inputs_like
from l0arm.compaction.outputs import chosen
from l0arm.groups import Gated
from l0arm.groups.dead import follow_dead
from l0arm.groups.draw import Draw
from l0arm.groups.engine import Engine
from l0arm.groups.example import Example
from l0arm.groups.layout import named_tensors
from l0arm.groups.modes import quiet

Mode = Literal["eval", "train"]
Outputs = dict[str, Tensor]
SEED = 0x10A2


class Scratch:
    """Runs the gated network as its definition says (closed units zeroed) and the small one."""

    def __init__(self, gated: Gated, example: Example) -> None:
        self.layout = gated.layout
        self.model = plain_copy(gated, share_hooks=False)
        self.random = torch.Generator().manual_seed(SEED)
        without_dropout(self.model)
        example = example.each(lambda tensor: tensor.to(gated.phi.device))
        self.dtype, example = self._settle(example)
        likely = inputs_like(self.model, example, self.random)
        self.inputs = [x for x in likely if x is example or self.refusal(x, "eval") is None]

    def _settle(self, example: Example) -> tuple[torch.dtype, Example]:
        """float64 tells a mistake from rounding; what rounds on its way is judged in float32."""
        own = {key: tensor.dtype for key, tensor in named_tensors(self.model).items()}
        for dtype in (torch.float64, torch.float32, None):
            self._cast(dtype, own)
            candidate = example if dtype is None else example.each(_caster(dtype))
            watch = Watch()
            try:
                with watch:
                    outputs = self._run(self.model, candidate, "eval")
            except Exception as error:  # whatever a forward raises
                failed = error
                continue
            _check_finite(outputs)
            exact = dtype == torch.float64 and not watch.downcasts
            exact = exact and not any(_is_rounded(t) for t in outputs.values())
            return torch.float64 if exact else torch.float32, candidate
        raise ValueError(f"the model does not run on the example inputs: {first_line(failed)}")

    def _cast(self, dtype: torch.dtype | None, own: dict[str, torch.dtype]) -> None:
        for key, tensor in named_tensors(self.model).items():
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(own[key] if dtype is None else dtype)

    def refusal(self, x: Example, mode: Mode) -> str | None:
        """Why the dense model does not run on an input in this mode; None if it does."""
        try:
            self._run(self.model, x, mode)
        except Exception as error:  # such as BatchNorm on a single value
            return first_line(error)
        return None

    def zeroed(self, z: Tensor, x: Example, mode: Mode, seed: int = SEED) -> Outputs:
        """What the gated network computes under z, nothing dropped: the definition."""
        engine = Engine(self.model, self.layout)
        try:
            with engine.evaluating(Draw(self.layout, z, sliced=False, writes=False)):
                return self._run(self.model, x, mode, seed)
        finally:
            engine.detach()

    def small(self, z: Tensor) -> nn.Module:
        """The network that compaction makes of z."""
        draw = Draw(self.layout, follow_dead(self.layout, z), writes=False)
        small = copy.deepcopy(self.model)
        cut(small, self.layout, draw)
        return select_inputs(small, self.layout, draw)

    def run(self, small: nn.Module, x: Example, mode: Mode) -> Outputs:
        """What a small network computes."""
        return self._run(small, x, mode)

    def _run(self, model: nn.Module, x: Example, mode: Mode, seed: int = SEED) -> Outputs:
        with quiet(model), _cloned_buffers(model), NoDropout():
            torch.manual_seed(seed)
            model.train(mode == "train")
            return chosen(model(*x.args, **x.kwargs), x.outputs)


class Watch(TorchFunctionMode):
    """Notices whether anything turns float64 into less."""

    def __init__(self) -> None:
        super().__init__()
        self.downcasts = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and _is_rounded(result):
            given = pytree.tree_leaves((args, kwargs))
            self.downcasts |= any(isinstance(t, Tensor) and t.dtype == torch.float64 for t in given)
        return result


@contextmanager
def _cloned_buffers(model: nn.Module) -> Iterator[None]:
    """A pass may write buffers, or put others in their place: afterwards they are as before."""
    saved = [(module, dict(module._buffers)) for module in model.modules()]
    clones = {id(b): b.clone() for _, kept in saved for b in kept.values() if b is not None}
    for module, kept in saved:
        module._buffers.update({k: b if b is None else clones[id(b)] for k, b in kept.items()})
    try:
        yield
    finally:
        for module, kept in saved:
            module._buffers.clear()
            module._buffers.update(kept)


def _caster(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor


def _check_finite(outputs: Outputs) -> None:
    floats = [t for t in outputs.values() if t.is_floating_point() or t.is_complex()]
    if not any(bool(t.isfinite().any()) for t in floats):
        raise ValueError(
            "the model's output on the example inputs holds no finite number to compare; check the "
            "inputs, and the names in outputs"
        )


def _is_rounded(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype != torch.float64


def first_line(error: Exception) -> str:
    """An error of somebody else's code, in one line."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {text[:200]}"
