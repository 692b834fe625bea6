"""Convolutions: plain, grouped, depthwise, transposed, in one to three dimensions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from l0arm.planning.contraction import reading
from l0arm.planning.elementwise import channelwise
from l0arm.planning.registry import NotCovered, rule
from l0arm.planning.site import Site
from l0arm.planning.space import Factor, Space, labels, mixed


@rule("aten.conv1d", "aten.conv2d", "aten.conv3d")
def convolution(
    site: Site,
    x: Space,
    weight: Space,
    bias: Space | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Space:
    """Filters make channels (dim 0 of the weight) and read those of x (dim 1)."""
    x = _spatial(site, x, weight)
    macs = math.prod(site.shape) * math.prod(weight.shape[1:])
    if groups == 1:
        inner = reading(site, x, 1, weight, 1)
        made = labels(weight, 0)
    else:
        inner = []
        made = _by_group(site, labels(x, 1), labels(weight, 0), groups)
    return _result(site, x, made, bias, macs, inner)


@rule("aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d")
def transposed(
    site: Site,
    x: Space,
    weight: Space,
    bias: Space | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Space:
    """The weight lies the other way round: dim 0 reads, dim 1 makes."""
    x = _spatial(site, x, weight)
    macs = math.prod(x.shape) * math.prod(weight.shape[1:])
    if groups == 1:
        inner = reading(site, x, 1, weight, 0)
        made = labels(weight, 1)
    else:
        inner = []
        rows = _by_group(site, labels(x, 1), labels(weight, 0), groups).reshape(groups, -1)
        made = np.repeat(rows[:, 0], weight.shape[1])
    return _result(site, x, made, bias, macs, inner)


def _spatial(site: Site, x: Space, weight: Space) -> Space:
    """A kernel mixes positions; along them nothing can be cut."""
    if len(x.shape) != len(weight.shape):
        raise NotCovered("a convolution of a batch")
    x = mixed(site.atoms, x, set(range(2, len(x.shape))), site.mixes())
    channels = x.at(1)
    if channels is not None and len(channels.dims) > 1:
        raise NotCovered("channels with units of their own")
    return x


def _by_group(site: Site, read: Any, made: Any, groups: int) -> Any:
    """A unit is a whole group of the convolution: its inputs, its filters, its outputs."""
    read, rows = read.reshape(groups, -1), made.reshape(groups, -1)
    reason = f"{site.where} needs whole groups"
    site.atoms.unite_along(read, (1,), reason)
    site.atoms.unite_along(rows, (1,), reason)
    site.atoms.unite(read[:, 0], rows[:, 0], reason)
    site.counts(rows[:, 0], "groups")
    return made


def _result(site: Site, x: Space, made: Any, bias: Space | None, macs: int, inner: Any) -> Space:
    factors = [f for f in x.factors if f.dims == (0,)]
    if made.any():
        factors.append(Factor((1,), made))
    site.works(macs, [*(f.atoms for f in factors), *inner])
    return channelwise(site, Space(site.shape, tuple(factors), fixed=x.fixed), [bias], 1)
