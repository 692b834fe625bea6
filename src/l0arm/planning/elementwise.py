"""Values that meet element by element, with broadcasting: their units become the same units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from l0arm.planning.registry import spaces_in
from l0arm.planning.site import Site
from l0arm.planning.space import Factor, Space, collapse, simplified


def elementwise(site: Site, *args: Any, **kwargs: Any) -> Space:
    """The rule of every operator that treats elements one by one."""
    return combine(site, spaces_in(*args, *kwargs.values()), site.shape)


def combine(site: Site, operands: Sequence[Space], shape: tuple[int, ...]) -> Space:
    """The space of ``f(a, b, ...)`` after broadcasting to ``shape``."""
    aligned = [_aligned(simplified(site.atoms, o), shape) for o in operands]
    merged: list[Factor] = []
    for number, operand in enumerate(aligned):
        for factor in operand.factors:
            for other in aligned[:number] + aligned[number + 1 :]:
                factor = _beside(site, factor, other)
            merged = _merge(site, merged, factor)
    return Space(shape, tuple(merged), fixed=next((o.fixed for o in operands if o.fixed), ""))


def _aligned(space: Space, shape: tuple[int, ...]) -> Space:
    """Dimensions counted as in the result, sizes of missing ones 1."""
    shift = len(shape) - len(space.shape)
    to = {dim: dim + shift for dim in range(len(space.shape))}
    return space.moved(to, (1,) * shift + space.shape)


def _beside(site: Site, factor: Factor, other: Space) -> Factor:
    """Along a dimension that the other value fills without labels, nothing can be cut."""
    blocked = {d for d in factor.dims if other.shape[d] > 1 and other.at(d) is None}
    reason = f"{site.where} meets positions that are never cut"
    if other.fixed:
        reason += f" ({other.fixed})"
    return collapse(site.atoms, factor, blocked, reason)


def _merge(site: Site, merged: list[Factor], factor: Factor) -> list[Factor]:
    """The labels of a result so far, with one more factor united with those it overlaps."""
    result = []
    for known in merged:
        if set(known.dims) & set(factor.dims):
            factor = _unite(site, known, factor)
        else:
            result.append(known)
    return [*result, factor]


def _unite(site: Site, one: Factor, other: Factor) -> Factor:
    """Two factors over overlapping dimensions become one over what they share.

    Where one labels all heads and positions (h, d) and the other positions (d) alone, whole heads
    win: the outermost dimension is the one whose units stay apart.
    """
    reason = site.mixes()
    for wide, narrow in ((one, other), (other, one)):
        if set(narrow.dims) < set(wide.dims) and wide.dims[0] not in narrow.dims:
            site.atoms.pin(narrow.atoms, reason)
            return collapse(site.atoms, wide, set(narrow.dims), reason)
    shared = set(one.dims) & set(other.dims)
    one = collapse(site.atoms, one, set(one.dims) - shared, reason)
    other = collapse(site.atoms, other, set(other.dims) - shared, reason)
    site.atoms.unite(one.atoms, other.atoms, reason)
    return one


def channelwise(site: Site, x: Space, parameters: Sequence[Space | None], dim: int) -> Space:
    """``x`` combined with vectors along one of its dimensions (BatchNorm's, a bias)."""
    ones = (1,) * len(x.shape)
    vectors = [
        replace(p.moved({0: dim}, ones[:dim] + p.shape + ones[dim + 1 :]), fixed=p.fixed)
        for p in parameters
        if p is not None
    ]
    return combine(site, [x, *vectors], x.shape)
