"""Views: reshape, flatten, permute, squeeze, expand. Labels follow the elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from l0arm.planning.rules.base import Site, Split, rule
from l0arm.planning.space import Factor, Space, collapse, line, simplified

Block = tuple[range, range]  # dimensions before and after with the same number of elements


@rule("aten.view.default", "aten.reshape", "aten._unsafe_view", "aten._reshape_alias")
def view(site: Site, x: Space, sizes: list[int], *strides: Any) -> Space:
    """A new shape. The sizes as written show which one is open (-1)."""
    result = reshape(site, x, site.shape, sizes)
    if site.call is not None and list(site.call.sizes) == list(sizes):
        for dim, size in enumerate(sizes):
            if size != -1:
                site.record_size(dim, result, dim)
    return result


@rule("aten.flatten", "aten.squeeze", "aten.unsqueeze", "aten.view_as", "aten.reshape_as")
def reshaped(site: Site, x: Space, *settings: Any) -> Space:
    """Dimensions merged, or dimensions of size 1 added and removed."""
    return reshape(site, x, site.shape)


@rule("aten.unflatten")
def unflatten(site: Site, x: Space, dim: int, sizes: list[int]) -> Space:
    """One dimension split."""
    dim %= len(x.shape)
    result = reshape(site, x, site.shape, [*x.shape[:dim], *sizes])
    for argument, size in enumerate(sizes):
        if size != -1:
            site.record_size(argument, result, dim + argument)
    return result


@rule("aten.permute")
def permute(site: Site, x: Space, order: list[int]) -> Space:
    """Dimensions reordered."""
    source = [d % len(x.shape) for d in order]
    return x.moved({old: new for new, old in enumerate(source)}, site.shape)


@rule("aten.movedim", "aten.moveaxis")
def movedim(site: Site, x: Space, source: int | list[int], places: int | list[int]) -> Space:
    """Some dimensions moved, the others in their order."""
    rank = len(x.shape)
    given = [[n % rank for n in ([d] if isinstance(d, int) else d)] for d in (source, places)]
    to = dict(zip(*given, strict=True))
    free = [d for d in range(rank) if d not in given[1]]
    to |= dict(zip([d for d in range(rank) if d not in to], free, strict=True))
    return x.moved(to, site.shape)


@rule("aten.transpose", "aten.swapaxes", "aten.swapdims")
def transpose(site: Site, x: Space, one: int, other: int) -> Space:
    """Two dimensions exchanged."""
    rank = len(x.shape)
    to = {d: d for d in range(rank)}
    to[one % rank], to[other % rank] = other % rank, one % rank
    return x.moved(to, site.shape)


@rule("aten.t", "aten.numpy_T", "aten.mT")
def t(site: Site, x: Space) -> Space:
    """A matrix transposed."""
    return x if len(x.shape) < 2 else transpose(site, x, -1, -2)


@rule("aten.expand", "aten.expand_as", "aten.broadcast_to")
def expand(site: Site, x: Space, *sizes: Any, **more: Any) -> Space:
    """Dimensions of size 1 repeated. New ones come first."""
    shift = len(site.shape) - len(x.shape)
    for factor in x.factors:
        for axis in range(len(factor.dims)):
            site.record_count(line(factor, axis))
    moved = x.moved({d: d + shift for d in range(len(x.shape))}, site.shape)
    if site.op == "expand" and sizes:
        for dim, size in enumerate(sizes[0]):
            if size != -1:
                site.record_size(dim, moved, dim)
    return replace(moved, parameter=x.parameter and site.shape == x.shape)


@rule("aten.channel_shuffle")
def channel_shuffle(site: Site, x: Space, groups: int) -> Space:
    """(groups, c) transposed to (c, groups), then flattened again."""
    batch, channels, *space = x.shape
    split = reshape(site, x, (batch, groups, channels // groups, *space))
    to = {d: {1: 2, 2: 1}.get(d, d) for d in range(len(split.shape))}
    crossed = split.moved(to, (batch, channels // groups, groups, *space))
    return reshape(site, crossed, site.shape)


def reshape(site: Site, x: Space, shape: Sequence[int], written: Sequence[int] = ()) -> Space:
    """Row-major ``x.reshape(shape)``. ``written`` are the sizes in the code, -1 for an open one."""
    shape = tuple(shape)
    blocks = matching(x.shape, shape)
    x = simplified(site.atoms, x)
    factors = []
    for factor in _mergeable(site, x, blocks):
        new = _reshaped(factor, x.shape, shape, blocks)
        if new is not None:
            factors.append(new)
    result = simplified(site.atoms, replace(x, shape=shape, factors=tuple(factors)))
    if site.trace.head_dims:
        result = result.relabelled([_within_heads(site, factor) for factor in result.factors])
    for factor in (*x.factors, *result.factors):
        _record(site, factor, written)
    return result


def _within_heads(site: Site, factor: Factor) -> Factor:
    """Units of the innermost dimension of a split one: the same positions of all heads."""
    outer = set(factor.dims[:-1])
    if outer:
        factor = collapse(site.atoms, factor, outer, f"not removable: {site.where}")
        site.trace.heads.append(factor.atoms)
    return factor


def matching(before: Sequence[int], after: Sequence[int]) -> list[Block]:
    """The smallest runs of dimensions with equal products.

    >>> matching((2, 12, 5), (2, 3, 4, 5))
    [(range(0, 1), range(0, 1)), (range(1, 2), range(1, 3)), (range(2, 3), range(3, 4))]
    """
    blocks, i, j = [], 0, 0
    while i < len(before) or j < len(after):
        first, second = i, j
        i, j = min(i + 1, len(before)), min(j + 1, len(after))
        while (m := math.prod(before[first:i])) != (n := math.prod(after[second:j])):
            i, j = (i + 1, j) if m < n else (i, j + 1)
        blocks.append((range(first, i), range(second, j)))
    return blocks


def _mergeable(site: Site, x: Space, blocks: Sequence[Block]) -> list[Factor]:
    """The factors that a view keeps. Two that would merge into one dimension are pinned instead.

    Of a weight, the first one stays: its channels, not the positions of its kernel. Of heads and
    positions within them, the positions stay if these are the units.
    """
    for block, _ in blocks:
        here = [f for f in x.factors if set(f.dims) & set(block)]
        if len(here) > 1:
            if x.constant:
                here = sorted(here, key=lambda factor: factor.dims)[1:]
            elif site.trace.head_dims:
                here = sorted(here, key=lambda factor: factor.dims)[:-1]
            for factor in here:
                site.atoms.pin(factor.atoms, f"{site.where} merges two dimensions with units")
            x = x.relabelled([f for f in x.factors if f not in here])
    return list(x.factors)


def _reshaped(
    factor: Factor, before: Sequence[int], after: Sequence[int], blocks: Sequence[Block]
) -> Factor | None:
    """The factor's labels on the dimensions after the view; None if all of those have size 1."""
    touched = [b for b in blocks if set(b[0]) & set(factor.dims)]
    dims = [d for old, _ in touched for d in old]
    spread = factor.atoms.reshape([before[d] if d in factor.dims else 1 for d in dims])
    whole = np.broadcast_to(spread, [before[d] for d in dims])
    new = tuple(d for _, fresh in touched for d in fresh if after[d] > 1)
    return Factor(new, whole.reshape([after[d] for d in new])) if new else None


def _record(site: Site, factor: Factor, written: Sequence[int]) -> None:
    """A split dimension must be cut evenly, and its sizes may come from attributes."""
    if len(factor.dims) > 1:
        is_open = [d < len(written) and written[d] == -1 for d in factor.dims]
        open_axis = is_open.index(True) if any(is_open) else None
        site.trace.splits.append(Split(factor, site.where, open_axis))
    for axis in range(len(factor.dims)):
        site.record_count(line(factor, axis))
