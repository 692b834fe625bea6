"""A scratch model, in float64 where it runs so: zeroed by a draw, sliced by it, or cut for good."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from l0arm.equality.difference import chosen, difference
from l0arm.equality.dropout import NoDropout, without_dropout
from l0arm.equality.example import Example
from l0arm.equality.modes import quiet
from l0arm.gating.cutting import cut, select_inputs
from l0arm.gating.dead import follow_dead
from l0arm.gating.draw import Draw
from l0arm.gating.engine import Engine
from l0arm.gating.layout import Layout, named_tensors

Mode = Literal["eval", "train"]
Outputs = dict[str, Tensor]
SEED, OTHER_SEED = 0x10A2, 0xA2
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}  # of max|y|


class Scratch:
    """Runs a network as its definition says (closed units zeroed), as training does, and small.

    The model is a copy that nobody else uses; its type changes and its dropout is switched off.
    """

    def __init__(self, model: nn.Module, example: Example) -> None:
        self.model = model
        without_dropout(model)
        self.dtype, self.example, self.first = self._settle(example)

    @property
    def tolerance(self) -> float:
        """What rounding may do, relative to max|y|."""
        return TOLERANCE[self.dtype]

    def _settle(self, example: Example) -> tuple[torch.dtype, Example, Outputs]:
        """float64 tells a mistake from rounding; what rounds on its way is judged in float32.

        With the example in the type that the model runs in, and the outputs on it.
        """
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
            exact = dtype == torch.float64 and not watch.downcasts
            exact = exact and not any(_is_rounded(t) for t in outputs.values())
            return torch.float64 if exact else torch.float32, candidate, outputs
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

    def dense(self, x: Example) -> Outputs:
        """What the model computes with all units."""
        return self._run(self.model, x, "eval")

    def zeroed(
        self,
        layout: Layout,
        z: Tensor,
        x: Example,
        mode: Mode = "eval",
        *,
        seed: int = SEED,
        graph: bool = False,
    ) -> Outputs:
        """What the network computes under z, nothing dropped: the definition."""
        draw = Draw(layout, z, sliced=False, writes=False)
        return self._drawn(draw, x, mode, seed=seed, graph=graph)

    def sliced(self, layout: Layout, z: Tensor, x: Example, mode: Mode = "eval") -> Outputs:
        """What training computes under z: closed units dropped for one pass."""
        return self._drawn(Draw(layout, z, writes=False), x, mode)

    def _drawn(
        self, draw: Draw, x: Example, mode: Mode, *, seed: int = SEED, graph: bool = False
    ) -> Outputs:
        engine = Engine(self.model, draw.layout)
        try:
            with engine.evaluating(draw):
                return self._run(self.model, x, mode, seed=seed, graph=graph)
        finally:
            engine.detach()

    def is_random(self, layout: Layout, z: Tensor) -> bool:
        """Whether train mode gives something else with other random numbers."""
        one, other = (
            self.zeroed(layout, z, self.example, "train", seed=seed) for seed in (SEED, OTHER_SEED)
        )
        return difference(one, other) > self.tolerance

    def small(self, layout: Layout, z: Tensor) -> nn.Module:
        """The network that compaction makes of z."""
        draw = Draw(layout, follow_dead(layout, z), writes=False)
        small = copy.deepcopy(self.model)
        cut(small, layout, draw)
        return select_inputs(small, layout, draw)

    def run(self, small: nn.Module, x: Example, mode: Mode = "eval") -> Outputs:
        """What a small network computes."""
        return self._run(small, x, mode)

    def _run(
        self, model: nn.Module, x: Example, mode: Mode, *, seed: int = SEED, graph: bool = False
    ) -> Outputs:
        with quiet(model), _as_before(model), NoDropout(), torch.set_grad_enabled(graph):
            torch.manual_seed(seed)
            model.train(mode == "train")
            x = x.each(torch.clone)  # a forward may write into its input
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
def _as_before(model: nn.Module) -> Iterator[None]:
    """A pass may write buffers, and keep what it computed: afterwards all is as before."""
    saved = [(module, dict(module.__dict__), dict(module._buffers)) for module in model.modules()]
    clones = {id(b): b.clone() for _, _, kept in saved for b in kept.values() if b is not None}
    for module, _, kept in saved:
        module._buffers.update({k: b if b is None else clones[id(b)] for k, b in kept.items()})
    try:
        yield
    finally:
        for module, attributes, kept in saved:
            module.__dict__.clear()
            module.__dict__.update(attributes)
            module._buffers.clear()
            module._buffers.update(kept)


def _caster(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor


def _is_rounded(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype != torch.float64


def first_line(error: Exception) -> str:
    """An error of somebody else's code, in one line."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {text[:200]}"
