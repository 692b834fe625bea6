"""Calls in a forward that are changed before they run, by what a draw leaves of the units.

Sizes may count units, as C of ``reshape(B, N, C)``. C may be the width of the input, which stays,
and count the positions of all heads, of which some are gone. No attribute could be patched. So the
call itself is found again, by its place in the code of the forward, and its sizes are scaled before
it runs. Likewise constants that meet units lose positions, closed experts get scores with which no
router chooses them, an operation that mixes units runs over all of them, and queries with fewer
positions keep the scale of their full width.
"""

from __future__ import annotations

import copy
import inspect
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from l0arm.gating.draw import Draw
from l0arm.gating.group import Dot, Pick, Resize, Route, Widen
from l0arm.gating.layout import Layout

SIZED: dict[Any, int] = {  # functions with sizes, and the place of these among the arguments
    Tensor.view: 1,
    Tensor.reshape: 1,
    torch.reshape: 1,
    Tensor.expand: 1,
    Tensor.split: 1,
    torch.split: 1,
    Tensor.split_with_sizes: 1,
    Tensor.unflatten: 2,
    torch.unflatten: 2,
    Tensor.__getitem__: 1,  # the ends of slices
}
COMBINING = {  # functions that meet constants and inputs element by element
    *("add", "__add__", "__radd__", "sub", "__sub__", "__rsub__", "mul", "__mul__", "__rmul__"),
    *("div", "__truediv__", "baddbmm", "masked_fill", "where", "scaled_dot_product_attention"),
}
ROUTING = {"softmax", "topk"}  # functions in which the units of a dimension compete
MIXING = {"mean", "var", "std", "var_mean", "std_mean", "batch_norm", "conv1d"}
ATTENTION = "scaled_dot_product_attention"
MULTIPLYING = {"matmul", "__matmul__", "mm", "bmm", "baddbmm", "einsum", ATTENTION}
NOTED = COMBINING | ROUTING | MIXING | MULTIPLYING  # their place in the code matters
SPREAD = (Tensor.view, Tensor.reshape, Tensor.expand)  # these take view(2, 3) for view((2, 3))
FILLED = (Tensor.view, Tensor.reshape, torch.reshape)  # the sizes must account for all elements
KEYWORDS = ("shape", "size", "sizes", "split_size", "split_size_or_sections", "split_sizes")
NUMBER = (int, torch.SymInt)  # torch.export has sizes that are not known yet
TORCH = str(Path(torch.__file__).parent / "_")[:-1]
CALL = nn.Module._call_impl.__code__


class Scale(NamedTuple):
    """One size of a call: of ``units`` units that it counts, ``kept`` are left."""

    argument: int
    kept: int
    units: int
    per_unit: int = 0  # positions; 0 if they are not known


class Selection(NamedTuple):
    """One operand of a call: only the positions of the units that are left."""

    operand: int
    dim: int
    block: int
    left: tuple[int, ...]
    units: int


class Fill(NamedTuple):
    """The scores of closed units: the smallest number there is, so that none is chosen."""

    dim: int
    closed: tuple[int, ...]


class Temper(NamedTuple):
    """A product that the forward divides by the root of a width of which ``kept`` are left."""

    operand: int
    kept: int
    units: int

    @property
    def factor(self) -> float:
        """What the product must be multiplied by: sqrt(kept / units)."""
        return math.sqrt(self.kept / self.units)


class Wide(NamedTuple):
    """An operation that runs over all units: its operand with zeros for those that are gone."""

    dim: int
    result: int | None
    block: int
    left: tuple[int, ...]
    units: int


Change = Scale | Selection | Fill | Temper | Wide
Places = set[tuple[str, int]]  # calls and their arguments
Scales = Mapping[str, tuple[Change, ...]]  # by the place of the call


class Resized:
    """In the place of a module's ``forward``: the same, with sizes scaled and operands selected.

    It is picklable and follows a deep copy of the module.

    Args:
        module: The module.
        scales: What to change, by the place of the call.

    Example:
        >>> class Half(nn.Module):
        ...     def forward(self, x):
        ...         return x.reshape(2, 4)
        >>> module = Half()
        >>> place = "Half.forward+1:30"  # the first line after def, where the call ends
        >>> module.forward = Resized(module, {place: (Scale(1, kept=1, units=2),)})
        >>> module(torch.zeros(4)).shape
        torch.Size([2, 2])
    """

    def __init__(self, module: nn.Module, scales: Scales) -> None:
        self.module, self.scales = module, scales
        self.own = vars(module).get("forward")  # of the module itself, not of its class

    def install(self) -> Resized:
        """Put it into its place."""
        vars(self.module)["forward"] = self
        return self

    def remove(self) -> None:
        """Give the module its own forward again."""
        if self.own is None:
            vars(self.module).pop("forward", None)
        else:
            vars(self.module)["forward"] = self.own

    def remove_from(self, copied: nn.Module) -> None:
        """Give a copy of the module, which shares this forward, one of its own again."""
        if self.own is None:
            vars(copied).pop("forward")
        else:
            vars(copied)["forward"] = copy.deepcopy(self.own, {id(self.module): copied})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        scales = self.scales_now()
        if not scales:
            return self._original(*args, **kwargs)
        run = self._run
        if torch.compiler.is_dynamo_compiling():  # as a decorator it would load the compiler
            run = torch.compiler.disable(run)  # type: ignore[no-untyped-call, unused-ignore]
        return run(scales, args, kwargs)

    def scales_now(self) -> Scales:
        """The scales of this call."""
        return self.scales

    def _run(self, scales: Scales, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        mode = _Scaling(self.module, scales)
        with mode:
            output = self._original(*args, **kwargs)
        missed = [place for place in scales if place not in mode.seen and _NOTES.get() is None]
        if missed:
            raise RuntimeError(
                f"the forward of {type(self.module).__name__} does not run as it did when it was "
                f"planned: '{missed[0]}' was not reached, where sizes count units; plan it in the "
                "way and with the code that runs now"
            )
        return output

    def _original(self, *args: Any, **kwargs: Any) -> Any:
        if self.own is not None:
            return self.own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        own = self.own
        return inspect.signature(own or type(self.module).forward.__get__(self.module))


def scales_under(layout: Layout, draw: Draw, module: str | None = None) -> Mapping[str, Scales]:
    """The changes that a draw asks for, by module (of one module, or all) and place."""
    found: dict[str, dict[str, tuple[Change, ...]]] = {}
    for number, group in enumerate(layout.groups):
        kept = draw.units_kept(number)
        parts: list[Resize | Pick | Route | Dot | Widen] = []
        if draw.sliced and kept < group.units:
            parts += [*group.resizes, *group.picks, *group.widens]
            parts += [dot for dot in group.dots if dot.counted]
        closed = draw.units_standing_in(number) if group.routes else ()
        parts += group.routes if closed else ()
        for part in parts:
            if module in (None, part.module):
                places = found.setdefault(part.module, {})
                change: Change
                if isinstance(part, Resize):
                    change = Scale(part.argument, kept, group.units, part.per_unit)
                elif isinstance(part, Dot):
                    change = Temper(part.operand, kept, group.units)
                elif isinstance(part, Route):
                    change = Fill(part.dim, closed)
                elif isinstance(part, Widen):
                    left = draw.units_left(number)
                    change = Wide(part.dim, part.result, part.block, left, group.units)
                else:
                    left = draw.units_left(number)
                    change = Selection(part.operand, part.dim, part.block, left, group.units)
                places[part.place] = (*places.get(part.place, ()), change)
    return found


# Whether arguments are being changed: the operations that this takes are nobody's call.
_CHANGING: ContextVar[bool] = ContextVar("arguments are being changed", default=False)
_NOTES: ContextVar[Places | None] = ContextVar("scaled sizes", default=None)


@contextmanager
def noting_scaled() -> Iterator[Places]:
    """Collect which sizes were scaled. Others fit already, or their calls are not reached.

    Inside, calls that are not reached raise nothing.
    """
    found: Places = set()
    token = _NOTES.set(found)
    try:
        yield found
    finally:
        _NOTES.reset(token)


def _noted(place: str, argument: int) -> None:
    notes = _NOTES.get()
    if notes is not None:
        notes.add((place, argument))


class _Scaling(TorchFunctionMode):
    """Scales the sizes of calls that the forward of one module makes itself."""

    def __init__(self, module: nn.Module, scales: Scales) -> None:
        super().__init__()
        self.module, self.scales = module, scales
        self.seen: set[str] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        listed = func in SIZED or getattr(func, "__name__", "") in NOTED
        if listed and not _CHANGING.get():
            place, caller = place_of(sys._getframe(1))
            scales = self.scales.get(place)
            # A module inside may have the same forward.
            if scales and caller is not None and caller.f_locals.get("self") is self.module:
                self.seen.add(place)
                token = _CHANGING.set(True)
                try:
                    func, args, kwargs = _changed(func, args, kwargs or {}, scales, place)
                finally:
                    _CHANGING.reset(token)
        return func(*args, **(kwargs or {}))


def _changed(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    changes: tuple[Change, ...],
    place: str,
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The function of a call and its arguments, after all changes that are meant for it.

    Several operations may end at one place: ``x - x.mean(1)`` is two.
    """
    name = getattr(func, "__name__", "")
    sizes = tuple(c for c in changes if isinstance(c, Scale) and func in SIZED)
    picks = [c for c in changes if isinstance(c, Selection) and name in COMBINING]
    args, kwargs = _selected(args, kwargs, picks)
    for fill in [c for c in changes if isinstance(c, Fill) and name in ROUTING]:
        args, kwargs = _filled(args, kwargs, fill)
    if sizes:
        args, kwargs = _scaled(func, args, kwargs, sizes, place)
    for temper in [c for c in changes if isinstance(c, Temper) and name in MULTIPLYING]:
        args, kwargs = _tempered(func, args, kwargs, temper)
    for wide in [c for c in changes if isinstance(c, Wide) and name in MIXING]:
        func = partial(_over_all_units, func, wide)
    return func, args, kwargs


HERE = _Scaling.__init__.__code__.co_filename


def place_of(frame: FrameType | None) -> tuple[str, FrameType | None]:
    """The place of a call in a module's forward, and the frame that called this forward.

    The place has every call on the way from the forward, the innermost first, by the line in its
    function and the column where it ends.
    """
    steps = []
    while frame is not None and frame.f_code is not CALL:
        code = frame.f_code
        if not code.co_filename.startswith(TORCH) and code.co_filename != HERE:
            steps.append(_position(code, frame.f_lasti))
        frame = frame.f_back
    return " < ".join(filter(None, steps)), frame


@lru_cache(maxsize=4096)
def _position(code: CodeType, instruction: int) -> str:
    if code.co_name == "__torch_function__":  # another mode, on its way to the call
        return ""
    _, line, _, column = list(code.co_positions())[instruction // 2]
    return f"{code.co_qualname}+{(line or 0) - code.co_firstlineno}:{column}"


def sizes_of(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int] | None:
    """The sizes among the arguments of a call; None if there are none, as in ``view(dtype)``."""
    if func is Tensor.__getitem__:
        ends = [end for part in slices_in(args[1]) for end in (part.start, part.stop)]
        known = [-1 if end is None else end for end in ends]
        return known if any(type(end) is int for end in ends) else None
    given = next((kwargs[key] for key in KEYWORDS if key in kwargs), None)
    if given is None:
        given = args[SIZED[func] :] if func in SPREAD else args[SIZED[func]]
        if func in SPREAD and len(given) == 1 and isinstance(given[0], tuple | list):
            given = given[0]
    given = [given] if isinstance(given, NUMBER) else given
    if not isinstance(given, tuple | list):
        return None
    if torch._C._get_tracing_state() is not None and any(isinstance(n, Tensor) for n in given):
        raise RuntimeError(
            "torch.jit.trace turns sizes into tensors, and this forward has sizes that are scaled "
            "to the units that are left; use torch.export, or l0arm.export.export_program"
        )
    return list(given) if all(isinstance(n, NUMBER) for n in given) else None


def slices_in(index: Any) -> list[slice]:
    """The slices of an index, in order."""
    parts = index if isinstance(index, tuple) else (index,)
    return [part for part in parts if isinstance(part, slice)]


def _scaled(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], scales: tuple[Scale, ...], place: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with scaled sizes. Sizes that fit already come from what was cut."""
    sizes = sizes_of(func, args, kwargs)
    if sizes is None or (func in FILLED and math.prod(sizes) == args[0].numel()):
        return args, kwargs
    given = list(sizes)  # several groups may be factors of one size
    for argument, kept, units, per_unit in scales:
        is_cut = per_unit > 0 and given[argument] != per_unit * units
        is_cut |= func is Tensor.expand and _fits(args[0], sizes, argument)
        if sizes[argument] != -1 and not is_cut:
            sizes[argument] = sizes[argument] * kept // units
            _noted(place, argument)
    if func is Tensor.__getitem__:
        return (args[0], _with_ends(args[1], sizes)), kwargs
    key = next((key for key in KEYWORDS if key in kwargs), None)
    if key is not None:
        whole = isinstance(kwargs[key], NUMBER)
        return args, {**kwargs, key: sizes[0] if whole else sizes}
    at = SIZED[func]
    whole = func not in SPREAD and isinstance(args[at], NUMBER)
    rest = () if func in SPREAD else args[at + 1 :]
    return (*args[:at], sizes[0] if whole else sizes, *rest), kwargs


def operands_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors of a call, in order."""
    return [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]


def _selected(
    args: tuple[Any, ...], kwargs: dict[str, Any], picks: list[Selection]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, with operands that have positions of closed units cut to those left."""
    for operand, dim, block, left, units in picks:
        tensors = operands_of(args, kwargs)
        if operand >= len(tensors) or tensors[operand].dim() < -dim:
            continue
        whole = tensors[operand]
        size = whole.shape[dim]
        others = {t.shape[dim] for t in tensors if t.dim() >= -dim and t is not whole}
        if size % (units * block) or size // units * len(left) not in others:
            continue  # it was cut already, as the state of a loop after its first step
        index = torch.tensor(left, device=whole.device)
        at = whole.dim() + dim
        split = whole.reshape(*whole.shape[:at], -1, units, block, *whole.shape[at + 1 :])
        new = split.index_select(at + 1, index).flatten(at, at + 2)
        args = tuple(new if value is whole else value for value in args)
        kwargs = {key: new if value is whole else value for key, value in kwargs.items()}
    return args, kwargs


def _filled(
    args: tuple[Any, ...], kwargs: dict[str, Any], fill: Fill
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, with the smallest number as the score of closed units."""
    scores = operands_of(args, kwargs)[0]
    index = torch.tensor(fill.closed, device=scores.device)
    new = scores.index_fill(fill.dim, index, torch.finfo(scores.dtype).min)
    args = tuple(new if value is scores else value for value in args)
    return args, {key: new if value is scores else value for key, value in kwargs.items()}


def _tempered(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], temper: Temper
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a product of queries and keys, so that it has the scale of the full width.

    Fused attention takes the scale as an argument. Elsewhere the queries are multiplied.
    """
    operand = operands_of(args, kwargs)[temper.operand]
    if func.__name__ == ATTENTION:
        given = kwargs.get("scale")
        scale = operand.shape[-1] ** -0.5 if given is None else given
        return args, {**kwargs, "scale": scale * temper.factor}
    new = operand * temper.factor
    args = tuple(new if value is operand else value for value in args)
    return args, {key: new if value is operand else value for key, value in kwargs.items()}


def _over_all_units(func: Any, wide: Wide, *args: Any, **kwargs: Any) -> Any:
    """What a function gives for all units, without the positions of those that are gone."""
    narrow = operands_of(args, kwargs)[0]
    left = torch.tensor(wide.left, device=narrow.device)
    at, run = narrow.dim() + wide.dim, wide.units * wide.block
    times = narrow.shape[at] // (len(left) * wide.block)
    starts = torch.arange(times, device=narrow.device)[:, None, None] * run
    within = torch.arange(wide.block, device=narrow.device)
    index = (starts + left[:, None] * wide.block + within).flatten()
    shape = (*narrow.shape[:at], times * run, *narrow.shape[at + 1 :])
    whole = narrow.new_zeros(shape).index_copy(at, index, narrow)
    args = tuple(whole if value is narrow else value for value in args)
    kwargs = {key: whole if value is narrow else value for key, value in kwargs.items()}
    result = func(*args, **kwargs)
    if wide.result is None:
        return result
    return result.index_select(result.dim() + wide.result, index)


def _fits(x: Tensor, sizes: list[int], argument: int) -> bool:
    """Whether a size of ``expand`` is that of the dimension."""
    dim = argument - (len(sizes) - x.dim())
    return dim >= 0 and sizes[argument] == x.shape[dim]


def _with_ends(index: Any, ends: list[int]) -> Any:
    """An index whose slices have other ends; those that were left open stay so."""
    rest = iter(ends)

    def moved(part: Any) -> Any:
        if not isinstance(part, slice):
            return part
        start, stop = next(rest), next(rest)
        is_open = part.start is None, part.stop is None
        return slice(None if is_open[0] else start, None if is_open[1] else stop, part.step)

    return tuple(map(moved, index)) if isinstance(index, tuple) else moved(index)
