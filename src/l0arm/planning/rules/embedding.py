"""Tables looked up by integers: rows are never cut, columns make units."""

from __future__ import annotations

from typing import Any

from l0arm.planning.registry import NotCovered, rule
from l0arm.planning.site import Site
from l0arm.planning.space import Space, without


@rule("aten.embedding")
def embedding(site: Site, table: Space, indices: Space, *settings: Any) -> Space:
    """table[indices]."""
    return _rows(site, table, len(indices.shape))


@rule("aten.index.Tensor")
def index(site: Site, x: Space, indices: list[Space | None]) -> Space:
    """x[indices] along the first dimension."""
    if len(indices) != 1 or indices[0] is None or indices[0].factors:
        raise NotCovered("indices along the first dimension")
    return _rows(site, x, len(indices[0].shape))


@rule("aten.index_select")
def index_select(site: Site, x: Space, dim: int, indices: Space) -> Space:
    """Chosen positions of one dimension, which must not be cut."""
    dim %= len(x.shape)
    rest = without(site.atoms, x, {dim}, _looked_up(site))
    to = {d: d + (d >= dim) for d in range(len(rest.shape))}
    return Space(site.shape, rest.moved(to, site.shape).factors, fixed=x.fixed)


def _rows(site: Site, table: Space, lead: int) -> Space:
    columns = without(site.atoms, table, {0}, _looked_up(site))
    to = {d: d + lead for d in range(len(columns.shape))}
    return Space(site.shape, columns.moved(to, site.shape).factors, fixed=_looked_up(site))


def _looked_up(site: Site) -> str:
    return f"{site.where} looks positions up by number"
