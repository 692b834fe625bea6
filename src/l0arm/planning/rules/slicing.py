"""Parts of a dimension: concatenation, splitting, slices, repetition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from l0arm.planning.atoms import Array
from l0arm.planning.rules.base import NotCovered, Site, rule
from l0arm.planning.rules.pointwise import combine
from l0arm.planning.space import Factor, Space, line, mixed, picked, simplified


@rule("aten.cat", "aten.concat")
def cat(site: Site, parts: list[Space], dim: int = 0) -> Space:
    """Labels one after the other. Along the other dimensions the parts share their units."""
    dim %= len(site.shape)
    parts = [simplified(site.atoms, p) for p in parts if p.shape != (0,)]
    covers = {f.dims for p in parts for f in p.factors if dim in f.dims}
    dims = next(iter(covers)) if len(covers) == 1 else (dim,)
    if len(covers) > 1:  # parts are labelled over different dimensions: keep this one only
        others = {d for cover in covers for d in cover} - {dim}
        parts = [mixed(site.atoms, p, others, site.mixes()) for p in parts]
    rests = [p.relabelled([f for f in p.factors if dim not in f.dims]) for p in parts]
    ones = [replace(r, shape=_resized(r.shape, dim, 1)) for r in rests]
    result = combine(site, ones, _resized(site.shape, dim, 1))
    if not covers:
        return replace(result, shape=site.shape)
    runs = [_run(p, dims, dim) for p in parts]
    joined = Factor(dims, np.concatenate(runs, axis=dims.index(dim)))
    return replace(result, shape=site.shape, factors=(*result.factors, joined))


def _run(part: Space, dims: tuple[int, ...], dim: int) -> Array:
    """The part's labels over ``dims``, or zeros if it has none."""
    factor = part.at(dim)
    shape = [part.shape[d] for d in dims]
    if factor is None or factor.dims != dims:
        return np.zeros(shape, dtype=np.int64)
    return factor.atoms


def _resized(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])


@rule("aten.stack")
def stack(site: Site, parts: list[Space], dim: int = 0) -> Space:
    """A new dimension, along which nothing is cut."""
    alike = combine(site, parts, parts[0].shape)
    dim %= len(site.shape)
    return alike.moved({d: d + (d >= dim) for d in range(len(alike.shape))}, site.shape)


def part(site: Site, x: Space, dim: int, start: int, stop: int, step: int = 1) -> Space:
    """Positions ``start:stop:step`` of one dimension."""
    chosen = range(start, stop, step)
    factors = []
    for f in simplified(site.atoms, x).factors:
        if dim not in f.dims:
            factors.append(f)
        elif len(chosen) > 1:
            factors.append(Factor(f.dims, f.atoms.take(chosen, axis=f.along(dim))))
        else:
            factors += _single(site, f, dim, start)
    return replace(x, shape=_resized(x.shape, dim, len(chosen)), factors=tuple(factors))


def _single(site: Site, factor: Factor, dim: int, index: int) -> list[Factor]:
    """The labels left at one position of a dimension: those of its joint dimensions, if any."""
    if factor.dims == (dim,):
        site.atoms.pin(factor.atoms, f"{site.where} picks a position by number")
        return []
    rest = tuple(d for d in factor.dims if d != dim)
    return [Factor(rest, picked(factor.atoms, factor.along(dim), index))]


@rule("aten.chunk", "aten.split", "aten.split_with_sizes", "aten.tensor_split", "aten.unsafe_chunk")
def split(site: Site, x: Space, sizes: Any, dim: int = 0) -> tuple[Space, ...]:
    """Equal parts shrink by the same units. Unequal ones are left to the trial by values."""
    dim %= len(x.shape)
    widths = [shape[dim] for shape in site.shapes]
    if len(set(widths)) == 1 and len(widths) > 1:
        _even_parts(site, x, dim, widths[0])
    stops = np.cumsum(widths).tolist()
    pieces = [part(site, x, dim, s - w, s) for s, w in zip(stops, widths, strict=True)]
    for number, piece in enumerate(pieces):
        if isinstance(sizes, list | tuple) or number == 0:
            site.record_size(number, piece, dim)
        for factor in piece.factors:
            if factor.dims == (dim,):
                site.record_count(factor.atoms)
    return tuple(pieces)


@rule("aten.glu")
def glu(site: Site, x: Space, dim: int = -1) -> Space:
    """a * sigmoid(b), where a and b are the two halves of x."""
    dim %= len(x.shape)
    half = x.shape[dim] // 2
    _even_parts(site, x, dim, half)
    halves = [part(site, x, dim, 0, half), part(site, x, dim, half, 2 * half)]
    return combine(site, halves, site.shape)


@rule("aten.slice", "aten.narrow")
def slice_(
    site: Site, x: Space, dim: int = 0, start: Any = None, stop: Any = None, step: int = 1
) -> Space:
    """One of several equal parts shrinks with the others.

    Unequal parts that make up the whole are left to the trial by values: queries, keys and values
    of one projection. Any other choice by number pins.
    """
    dim, size = dim % len(x.shape), x.shape[dim % len(x.shape)]
    if site.op == "narrow":
        stop = start + stop
    start, stop, step = slice(start, stop, step).indices(size)
    width = len(range(start, stop, step))
    empty = site.trace.head_dims and not width  # what is left of positions that are all rotated
    if width < size and x.at(dim) is not None and not empty:
        starts, stops = [a for a, _ in site.parts], [b for _, b in site.parts]
        is_split = [*starts, size] == [0, *stops] and len({b - a for a, b in site.parts}) > 1
        alone = simplified(site.atoms, x).at(dim)  # within heads, positions stay together
        if is_split and step == 1 and alone is not None and alone.dims == (dim,):
            _record_ends(site, x, dim, (start, stop))
        elif site.trace.head_dims and width * step == size:
            _runs(site, x, dim, step)
        elif width and step == 1 and size % width == 0 and start % width == 0:
            _even_parts(site, x, dim, width)
        else:
            x = mixed(site.atoms, x, {dim}, f"{site.where} picks positions by number")
    if x.at(dim) is None or not width:
        kept = [f for f in x.factors if dim not in f.dims]
        return replace(x, shape=_resized(x.shape, dim, width), factors=tuple(kept))
    return part(site, x, dim, start, stop, step)


def _record_ends(site: Site, x: Space, dim: int, ends: tuple[int, int]) -> None:
    """Record what the ends of a slice count: the positions before them."""
    written = () if site.call is None else site.call.sizes
    size = x.shape[dim]
    pairs = list(zip(written[::2], written[1::2], strict=False))
    open_ends = {0: (0, -1), 1: (size, -1)}  # -1 stands for one that is not written
    mine = [
        number
        for number, pair in enumerate(pairs)
        if all(pair[n] == end or (end, pair[n]) == open_ends[n] for n, end in enumerate(ends))
    ]
    for n, end in enumerate(ends) if len(mine) == 1 else ():
        if pairs[mine[0]][n] > 0:
            site.record_size(2 * mine[0] + n, part(site, x, dim, 0, end), dim)


@rule("aten.select")
def select(site: Site, x: Space, dim: int, index: int) -> Space:
    """One position of a dimension, which is removed."""
    dim %= len(x.shape)
    factors: list[Factor] = []
    for f in simplified(site.atoms, x).factors:
        factors += _single(site, f, dim, index) if dim in f.dims else [f]
    to = {d: d - (d > dim) for d in range(len(x.shape)) if d != dim}
    return replace(x, shape=site.shape, factors=tuple(f.moved(to) for f in factors))


@rule("aten.unbind")
def unbind(site: Site, x: Space, dim: int = 0) -> tuple[Space, ...]:
    """All positions of a dimension, one by one."""
    count = x.shape[dim % len(x.shape)]
    sites = [replace(site, shapes=(shape,)) for shape in site.shapes]
    return tuple(select(sites[n], x, dim, n) for n in range(count))


@rule("aten.flip", "aten.roll")
def reordered(site: Site, x: Space, *settings: Any) -> Space:
    """Positions exchanged along some dimensions. Their units are pinned."""
    dims = settings[-1] if settings else []
    dims = {d % len(x.shape) for d in ([dims] if isinstance(dims, int) else dims)}
    return mixed(site.atoms, x, dims or set(range(len(x.shape))), site.mixes())


@rule("aten.repeat_interleave.self_int")
def repeat_interleave(
    site: Site, x: Space, times: int, dim: int | None = None, **more: Any
) -> Space:
    """Every position several times, as for the key heads of grouped queries.

    One position becomes as many as there are units, and then any of them can go.
    """
    if dim is None:
        raise NotCovered("repetition along one dimension")
    dim %= len(x.shape)
    if x.shape[dim] == 1 and times > 1:
        alike = Factor((dim,), site.atoms.create_alike(times))
        site.record_count(alike.atoms)
        return replace(x, shape=site.shape, factors=(*x.factors, alike), parameter=False)
    factors = [
        Factor(f.dims, np.repeat(f.atoms, times, axis=f.along(dim))) if dim in f.dims else f
        for f in x.factors
    ]
    return Space(site.shape, tuple(factors), fixed=x.fixed)


@rule("aten.repeat")
def repeat(site: Site, x: Space, times: list[int]) -> Space:
    """Tiles. Nothing can be cut along repeated dimensions."""
    shift = len(times) - len(x.shape)
    tiled = {d - shift for d, n in enumerate(times) if n > 1 and d >= shift}
    x = mixed(site.atoms, x, tiled, site.mixes())
    kept = x.relabelled([f for f in x.factors if not set(f.dims) & tiled])
    moved = kept.moved({d: d + shift for d in range(len(x.shape))}, site.shape)
    return Space(site.shape, moved.factors, fixed=x.fixed)


def _runs(site: Site, x: Space, dim: int, step: int) -> None:
    """Unite runs of positions of which every ``step``-th is taken: rotary embeddings pair them."""
    factor = simplified(site.atoms, x).at(dim)
    if factor is not None:
        axis = factor.along(dim)
        runs = np.moveaxis(factor.atoms, axis, 0)
        runs = runs.reshape(-1, step, *runs.shape[1:])
        site.atoms.unite_along(runs, (1,), f"{site.where} picks positions by number")


def _even_parts(site: Site, x: Space, dim: int, size: int) -> None:
    """Unite the units of equal parts of a dimension: the parts must keep one size."""
    factor = simplified(site.atoms, x).at(dim)
    if factor is None:
        return
    axis = factor.along(dim)
    parts = np.moveaxis(factor.atoms, axis, 0).reshape(
        -1, size, *np.delete(factor.atoms.shape, axis)
    )
    site.atoms.unite_along(parts, (0,), f"{site.where} needs parts of one size")
    site.record_count(parts.reshape(len(parts), size, -1)[0, :, 0])
    site.record_count(line(factor, axis))
