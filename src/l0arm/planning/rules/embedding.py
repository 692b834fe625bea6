"""Lookups by integer: the rows of a table are never cut, its columns make units."""

from __future__ import annotations

from typing import Any

from l0arm.planning.rules.base import NotCovered, Site, rule
from l0arm.planning.rules.experts import numbered
from l0arm.planning.space import Space, without


@rule("aten.embedding")
def embedding(site: Site, table: Space, indices: Space, *settings: Any) -> Space:
    """``table[indices]``."""
    return _looked_up(site, table, 0, indices)


@rule("aten.embedding_bag")
def embedding_bag(site: Site, table: Space, *settings: Any, **more: Any) -> tuple[Space, ...]:
    """Sums, means or maxima of rows. The other results only count."""
    reason = f"{site.where} looks positions up by number"
    rest = without(site.atoms, table, {0}, reason)
    bags = Space(site.shapes[0], rest.moved({0: 1}, site.shapes[0]).factors, fixed=reason)
    return (bags, *(Space(shape, fixed=reason) for shape in site.shapes[1:]))


@rule("aten.index.Tensor")
def index(site: Site, x: Space, indices: list[Space | None]) -> Space:
    """``x[:, indices]``, along one dimension."""
    given = [dim for dim, chosen in enumerate(indices) if chosen is not None]
    chosen = indices[given[0]] if len(given) == 1 else None
    if chosen is None:
        raise NotCovered("numbers along one dimension")
    return _looked_up(site, x, given[0], chosen)


@rule("aten.index_select")
def index_select(site: Site, x: Space, dim: int, indices: Space) -> Space:
    """Chosen positions along one dimension, which is never cut."""
    return _looked_up(site, x, dim % len(x.shape), indices)


def _looked_up(site: Site, x: Space, dim: int, indices: Space) -> Space:
    """The dimension is replaced by those of the indices. The others keep their units."""
    rank = len(indices.shape)
    if indices.numbers is not None:
        x = numbered(site, x, dim, indices.numbers)
    reason = f"{site.where} looks positions up by number"
    rest = without(site.atoms, x, {dim}, reason)
    to = {d: d if d < dim else d + rank for d in range(len(rest.shape))}
    # A matrix taken from a stack of them, as those of experts, is still a weight.
    stack = x.parameter and dim == 0 and len(x.shape) > 2
    return Space(site.shape, rest.moved(to, site.shape).factors, parameter=stack, fixed=reason)
