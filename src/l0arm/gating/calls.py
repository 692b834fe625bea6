"""What a change does to the arguments of one call: sizes, operands, scores, scale.

Changes are found by the place of the call (resizing.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

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

_NOTES: ContextVar[Places | None] = ContextVar("scaled sizes", default=None)


def is_noting() -> bool:
    """Whether scaled sizes are being collected."""
    return _NOTES.get() is not None


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


def changed(
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
