"""Convolutions: plain, grouped, depthwise, transposed, in one to three dimensions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from l0arm.planning.atoms import Array
from l0arm.planning.rules.base import NotCovered, Site, rule
from l0arm.planning.rules.contraction import reading
from l0arm.planning.rules.pointwise import channelwise
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
    """Filters make channels (dim 0 of the weight) and read those of x (dim 1).

    One along units, as in efficient channel attention, may go on running over all of them.
    """
    along = x.at(2) if site.op == "conv1d" and site.shape[1:] == x.shape[1:] else None
    if along is not None and x.shape[1] == 1 and site.runs_over_all(x, {2}, -1):
        rest = x.relabelled([f for f in x.factors if f is not along])
        rest = _spatial(site, rest, weight)
        site.record_work(math.prod(site.shape) * math.prod(weight.shape[1:]), [])
        kept = [f for f in rest.factors if f.dims == (0,)]
        return Space(site.shape, (*kept, along), fixed=x.fixed)
    x = _spatial(site, x, weight)
    macs = math.prod(site.shape) * math.prod(weight.shape[1:])
    if groups == 1:
        inner = reading(site, x, 1, weight, 1)
        made = labels(weight, 0)
    else:
        inner = list[Array]()
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
    """Dim 0 of the weight reads the channels of x and dim 1 makes new ones."""
    x = _spatial(site, x, weight)
    macs = math.prod(x.shape) * math.prod(weight.shape[1:])
    if groups == 1:
        inner = reading(site, x, 1, weight, 0)
        made = labels(weight, 1)
    else:
        inner = list[Array]()
        rows = _by_group(site, labels(x, 1), labels(weight, 0), groups).reshape(groups, -1)
        made = np.repeat(rows[:, 0], weight.shape[1])
    return _result(site, x, made, bias, macs, inner)


def _spatial(site: Site, x: Space, weight: Space) -> Space:
    """The input with its spatial dimensions mixed: a kernel reads several positions at once."""
    if len(x.shape) != len(weight.shape):
        raise NotCovered("a convolution of a batch")
    x = mixed(site.atoms, x, set(range(2, len(x.shape))), site.mixes())
    channels = x.at(1)
    if channels is not None and len(channels.dims) > 1:
        raise NotCovered("channels with units of their own")
    return x


def _by_group(site: Site, read: Array, made: Array, groups: int) -> Array:
    """The channels that are made. A unit is a whole group: its inputs, filters and outputs."""
    read, rows = read.reshape(groups, -1), made.reshape(groups, -1)
    reason = f"{site.where} needs whole groups"
    site.atoms.unite_along(read, (1,), reason)
    site.atoms.unite_along(rows, (1,), reason)
    site.atoms.unite(read[:, 0], rows[:, 0], reason)
    site.record_count(rows[:, 0], "groups")
    return made


def _result(
    site: Site, x: Space, made: Array, bias: Space | None, macs: int, inner: list[Array]
) -> Space:
    factors = [f for f in x.factors if f.dims == (0,)]
    if made.any():
        factors.append(Factor((1,), made))
    site.record_work(macs, [*(f.atoms for f in factors), *inner])
    return channelwise(site, Space(site.shape, tuple(factors), fixed=x.fixed), [bias], 1)
