"""Views: reshape, flatten, permute, squeeze, expand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from l0arm.planning.registry import NotCovered, rule
from l0arm.planning.reshaping import reshape
from l0arm.planning.site import Site
from l0arm.planning.space import Space, line


@rule("aten.view.default", "aten.reshape", "aten._unsafe_view", "aten._reshape_alias")
def view(site: Site, x: Space, sizes: list[int], *strides: Any) -> Space:
    """The sizes as written tell which one is open (-1)."""
    return reshape(site, x, site.shape, sizes)


@rule("aten.flatten", "aten.squeeze", "aten.unsqueeze", "aten.view_as", "aten.reshape_as")
def reshaped(site: Site, x: Space, *settings: Any) -> Space:
    """Dimensions merged, or of size 1 added and taken away."""
    return reshape(site, x, site.shape)


@rule("aten.unflatten")
def unflatten(site: Site, x: Space, dim: int, sizes: list[int]) -> Space:
    """One dimension split."""
    dim %= len(x.shape)
    return reshape(site, x, site.shape, [*x.shape[:dim], *sizes])


@rule("aten.permute", "aten.movedim.intlist")
def permute(site: Site, x: Space, order: list[int], to: list[int] | None = None) -> Space:
    """Dimensions reordered."""
    if to is not None:
        raise NotCovered("permute")
    source = [d % len(x.shape) for d in order]
    return x.moved({old: new for new, old in enumerate(source)}, site.shape)


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
    """Dimensions of size 1 repeated; new ones come in front."""
    shift = len(site.shape) - len(x.shape)
    for factor in x.factors:
        for axis in range(len(factor.dims)):
            site.counts(line(factor, axis))
    moved = x.moved({d: d + shift for d in range(len(x.shape))}, site.shape)
    return replace(moved, parameter=x.parameter and site.shape == x.shape)


@rule("aten.channel_shuffle")
def channel_shuffle(site: Site, x: Space, groups: int) -> Space:
    """(groups, c) transposed to (c, groups), flattened again."""
    batch, channels, *space = x.shape
    apart = reshape(site, x, (batch, groups, channels // groups, *space))
    to = {d: {1: 2, 2: 1}.get(d, d) for d in range(len(apart.shape))}
    crossed = apart.moved(to, (batch, channels // groups, groups, *space))
    return reshape(site, crossed, site.shape)
