"""A scratch copy of a model, run under gates in each way: zeroed, sliced, or cut for good."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from l0arm.equality.difference import comparable_entries, output_difference, selected_outputs
from l0arm.equality.example import (
    Example,
    NoDropout,
    restored_state,
    without_side_effects,
    zero_dropout_rates,
)
from l0arm.equality.inputs import SEED
from l0arm.equality.widened import Widened, put_back, saving_less, widen_large
from l0arm.gating.cutting import cut, select_inputs
from l0arm.gating.draw import Draw
from l0arm.gating.engine import Engine
from l0arm.gating.layout import Layout, named_tensors, resolve
from l0arm.gating.mask import close_dead_units

Mode = Literal["eval", "train"]
Outputs = dict[str, Tensor]
OTHER_SEED = 0xA2
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}  # relative to max|y|
VISIBLE = 100.0  # an effect shows if it exceeds this many tolerances


class ScratchModel:
    """Runs a model as its definition says (closed units zeroed), as training does, and cut.

    The model is a copy that nobody else uses. It is cast to float64 if it runs so, and its dropout
    is switched off.
    """

    def __init__(self, model: nn.Module, example: Example) -> None:
        self.model = model
        zero_dropout_rates(model)
        self.dtype, self.example, self.first = self._cast_and_run(example)

    @property
    def tolerance(self) -> float:
        """The largest difference that counts as rounding, relative to max|y|."""
        return TOLERANCE[self.dtype]

    def _cast_and_run(self, example: Example) -> tuple[torch.dtype, Example, Outputs]:
        """Cast the model and run it: the type to compare in, the example cast, its outputs.

        float64 tells a mistake from rounding. A forward that rounds on its way is compared in
        float32.
        """
        own = {key: tensor.dtype for key, tensor in named_tensors(self.model).items()}
        self._widened = widen_large(self.model)
        attempts = (torch.float64, torch.float64, torch.float32, None)
        for dtype in attempts if self._widened else attempts[1:]:
            for key, tensor in named_tensors(self.model).items():
                if tensor.is_floating_point() and tensor.dtype != dtype:
                    tensor.data = tensor.data.to(own[key] if dtype is None else dtype)
            cast = example if dtype is None else example.map(partial(_cast, dtype=dtype))
            watch = _DowncastWatch()
            try:
                with watch:
                    outputs = self.run(self.model, cast)
            except Exception as error:  # whatever a forward raises
                failed = error
                self.put_back()  # weights that only act as float64 may not suit this model
                continue
            exact = dtype == torch.float64 and not watch.downcasts
            exact = exact and not any(_is_rounded(t) for t in outputs.values())
            return torch.float64 if exact else torch.float32, cast, outputs
        raise ValueError(f"the model does not run on the example inputs: {first_line(failed)}")

    def put_back(self) -> None:
        """Give the model its own large weights again."""
        put_back(self.model, self._widened)
        self._widened = {}

    def run(
        self,
        model: nn.Module,
        x: Example,
        mode: Mode = "eval",
        *,
        seed: int = SEED,
        graph: bool = False,
    ) -> Outputs:
        """The outputs of a model without dropout, with fixed random numbers and no side effects."""
        with (
            without_side_effects(model),
            restored_state(model),
            NoDropout(),
            torch.set_grad_enabled(graph),
        ):
            torch.manual_seed(seed)
            model.train(mode == "train")
            x = x.map(torch.clone)  # a forward may write into its input
            return selected_outputs(model(*x.args, **x.kwargs), x.outputs)

    def refusal(self, x: Example, mode: Mode) -> str | None:
        """Why the dense model does not run on an input in this mode; None if it does."""
        try:
            self.run(self.model, x, mode)
        except Exception as error:  # such as BatchNorm on a single value
            return first_line(error)
        return None

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
        """The outputs under z with closed units zeroed: the definition."""
        draw = Draw(layout, z, sliced=False, writes=False)
        return self._drawn(draw, x, mode, seed=seed, graph=graph)

    def sliced(self, layout: Layout, z: Tensor, x: Example, mode: Mode = "eval") -> Outputs:
        """The outputs under z with closed units dropped for one pass, as in training."""
        return self._drawn(Draw(layout, z, writes=False), x, mode)

    def _drawn(
        self, draw: Draw, x: Example, mode: Mode, *, seed: int = SEED, graph: bool = False
    ) -> Outputs:
        engine = Engine(self.model, draw.layout)
        try:
            with engine.evaluating(draw):
                return self.run(self.model, x, mode, seed=seed, graph=graph)
        finally:
            engine.detach()

    def slopes_of(self, modules: Sequence[str]) -> list[float]:
        """|dy/ds| of a factor s = 1 on what each module returns; 0 where there is no gradient."""
        factors = torch.ones(len(modules), dtype=self.dtype, requires_grad=True)

        def scaling(place: int) -> Callable[..., Any]:
            def scale(module: nn.Module, args: Any, output: Any) -> Any:
                def times(y: Tensor) -> Tensor:
                    return y * factors[place].to(y) if y.is_floating_point() else y

                return pytree.tree_map_only(Tensor, times, output)

            return scale

        hooks = [
            self.model.get_submodule(name).register_forward_hook(scaling(place))
            for place, name in enumerate(modules)
        ]
        try:
            with saving_less():
                outputs = self.run(self.model, self.example, graph=True)
            (slopes,) = torch.autograd.grad(_projection(outputs), factors)
        except Exception:  # a forward may cut the graph
            return [0.0] * len(modules)
        finally:
            for hook in hooks:
                hook.remove()
        return [float(slope) if math.isfinite(slope) else 0.0 for slope in slopes.abs()]

    def is_random(self, layout: Layout, z: Tensor) -> bool:
        """Whether outputs in train mode depend on random numbers."""
        one, other = (
            self.zeroed(layout, z, self.example, "train", seed=seed) for seed in (SEED, OTHER_SEED)
        )
        return output_difference(one, other) > self.tolerance

    def rounding(self, layout: Layout, z: Tensor, x: Example, mode: Mode) -> float:
        """How far rounding alone moves the outputs under z, relative to max|y|.

        Every weight and input moves by the precision of the type, up or down. In train mode
        BatchNorm divides by the spread of a batch. With few, nearly equal values it amplifies this
        by many orders of magnitude.
        """
        random = torch.Generator().manual_seed(SEED)
        unit = torch.finfo(self.dtype).eps

        def moved(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor
            signs = 2.0 * torch.randint(2, tensor.shape, generator=random) - 1.0
            return tensor * (1.0 + unit * signs.to(tensor))

        expected = self.zeroed(layout, z, x, mode)
        tensors = named_tensors(self.model)  # the large ones of a large model stay as they are
        own = {key: t.data for key, t in tensors.items() if not isinstance(t, Widened)}
        try:
            for key in own:
                tensors[key].data = moved(own[key])
            return output_difference(self.zeroed(layout, z, x.map(moved), mode), expected)
        finally:
            for key in own:
                tensors[key].data = own[key]

    def small(self, layout: Layout, z: Tensor) -> nn.Module:
        """The network that compaction makes of z. It shares the tensors that are not cut."""
        draw = Draw(layout, close_dead_units(layout, z), writes=False)
        shared: dict[int, Any] = {id(t): t for t in named_tensors(self.model).values()}
        small = copy.deepcopy(self.model, shared)
        cut(small, layout, draw)
        return select_inputs(small, layout, draw)


class _DowncastWatch(TorchFunctionMode):
    """Notices whether anything rounds float64 to a smaller type."""

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


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _is_rounded(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype != torch.float64


def first_line(error: Exception) -> str:
    """An error of somebody else's code, in one line."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {text[:200]}"


def invisible_groups(
    scratch: ScratchModel, layout: Layout, cases: Iterable[tuple[Tensor, Example]]
) -> frozenset[int]:
    """The groups (by number) whose closing shows in no output, in no case of gates and input.

    Equal outputs say nothing about such a group. Only groups that drop units are looked at.
    """
    hidden = {number for number, group in enumerate(layout.groups) if group.drops}
    smooth = _Smooth(scratch.model, layout)
    for z, x in cases:
        if not hidden:
            break
        slopes = smooth.slopes(scratch, z, x)
        for number in sorted(hidden):
            effect = slopes[number] or _effect_of_closing(scratch, layout, number, z, x)
            if effect > VISIBLE * scratch.tolerance:
                hidden.remove(number)
    return frozenset(hidden)


class _Smooth:
    """The groups of a layout whose gates may be fractions, and so have a gradient."""

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        self.whole = layout
        self.numbers = [n for n in range(len(layout.groups)) if n not in layout.twice]
        groups = [layout.groups[number] for number in self.numbers]
        self.layout = resolve(model, groups) if layout.twice and groups else layout

    def slopes(self, scratch: ScratchModel, z: Tensor, x: Example) -> list[float]:
        """|dy/dz| of every group in a random direction of y, relative to max|y|.

        That takes one backward pass. It is 0 where there is no gradient: nothing moves, it moves by
        jumps, the model has none, or the gates must be 0 or 1.
        """
        effects = [0.0] * len(self.whole.groups)
        if not self.numbers:
            return effects
        gates = torch.cat([z[self.whole.span(number)] for number in self.numbers])
        gates = gates.detach().clone().requires_grad_()
        try:
            with saving_less():
                outputs = scratch.zeroed(self.layout, gates, x, graph=True)
            (slope,) = torch.autograd.grad(_projection(outputs), gates)
        except Exception:  # a forward may cut the graph
            return effects
        for place, number in enumerate(self.numbers):
            effect = float(slope[self.layout.span(place)].norm())
            effects[number] = effect if math.isfinite(effect) else 0.0
        return effects


def _projection(outputs: Outputs) -> Tensor:
    """The sum of all outputs with random signs, each relative to its max|y| and its size."""
    random, total = torch.Generator().manual_seed(SEED), torch.zeros(())
    for y in outputs.values():
        values = y[comparable_entries(y.detach())]
        if values.numel():
            signs = 2.0 * torch.randint(2, values.shape, generator=random) - 1.0
            scale = values.detach().abs().max() * math.sqrt(values.numel())
            total = total.to(y.device) + ((values * signs.to(values)).sum() / scale).real
    return total


def _effect_of_closing(
    scratch: ScratchModel, layout: Layout, number: int, z: Tensor, x: Example
) -> float:
    """How far the outputs move when the group's units that z closes are open."""
    opened = z.clone()
    opened[layout.span(number)] = 1.0
    before, after = (scratch.zeroed(layout, gates, x) for gates in (opened, z))
    largest = 0.0
    for name, y in before.items():
        both = comparable_entries(y) & comparable_entries(after[name])
        if bool(both.any()):
            moved = (after[name] - y)[both].abs().max() / y[both].abs().max()
            largest = max(largest, float(moved))
    return largest
