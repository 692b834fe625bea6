"""Views: how labels follow when dimensions are split, merged and reordered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from l0arm.planning.site import Site
from l0arm.planning.space import Factor, Space, line, simplified

Block = tuple[range, range]  # dimensions before and after with the same number of elements


def reshape(site: Site, x: Space, shape: Sequence[int], asked: Sequence[int] = ()) -> Space:
    """Row-major ``x.reshape(shape)``; ``asked`` are the sizes as written, -1 for an open one."""
    shape = tuple(shape)
    blocks = matching(x.shape, shape)
    x = simplified(site.atoms, x)
    factors = []
    for factor in _apart(site, x, blocks):
        new = _reshaped(factor, x.shape, shape, blocks)
        if new is not None:
            factors.append(new)
    result = simplified(site.atoms, replace(x, shape=shape, factors=tuple(factors)))
    for factor in (*x.factors, *result.factors):
        _note(site, factor, asked)
    return result


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


def _apart(site: Site, x: Space, blocks: Sequence[Block]) -> list[Factor]:
    """Factors, pinned where two of them would be merged into one dimension."""
    for block, _ in blocks:
        here = [f for f in x.factors if set(f.dims) & set(block)]
        if len(here) > 1:
            for factor in here:
                site.atoms.pin(factor.atoms, f"{site.where} merges two dimensions with units")
            x = x.relabelled([f for f in x.factors if f not in here])
    return list(x.factors)


def _reshaped(
    factor: Factor, before: Sequence[int], after: Sequence[int], blocks: Sequence[Block]
) -> Factor | None:
    touched = [b for b in blocks if set(b[0]) & set(factor.dims)]
    dims = [d for old, _ in touched for d in old]
    spread = factor.atoms.reshape([before[d] if d in factor.dims else 1 for d in dims])
    whole = np.broadcast_to(spread, [before[d] for d in dims])
    new = tuple(d for _, fresh in touched for d in fresh if after[d] > 1)
    return Factor(new, whole.reshape([after[d] for d in new])) if new else None


def _note(site: Site, factor: Factor, asked: Sequence[int]) -> None:
    """A dimension that was split must be cut evenly; and its sizes may stand in an attribute."""
    if len(factor.dims) > 1:
        open_axis = next((a for a, d in enumerate(factor.dims) if _is_open(asked, d)), None)
        site.trace.joint.append((factor, site.where, open_axis))
    for axis in range(len(factor.dims)):
        site.counts(line(factor, axis))


def _is_open(asked: Sequence[int], dim: int) -> bool:
    return dim < len(asked) and asked[dim] == -1


def even_parts(site: Site, x: Space, dim: int, size: int) -> None:
    """A dimension cut into parts of equal size by counting: the parts must shrink alike."""
    factor = simplified(site.atoms, x).at(dim)
    if factor is None:
        return
    axis = factor.along(dim)
    parts = np.moveaxis(factor.atoms, axis, 0).reshape(
        -1, size, *np.delete(factor.atoms.shape, axis)
    )
    site.atoms.unite_along(parts, (0,), f"{site.where} needs parts of one size")
    site.counts(parts.reshape(len(parts), size, -1)[0, :, 0])
    site.counts(np.moveaxis(factor.atoms, axis, 0).reshape(x.shape[dim], -1)[:, 0])
