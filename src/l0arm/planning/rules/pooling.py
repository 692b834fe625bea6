"""Pooling, resizing and padding: spatial dimensions change, channels stay."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from l0arm.planning.rules.base import NotCovered, Site, rule
from l0arm.planning.space import Factor, Space, mixed

POOLS = "max_pool avg_pool adaptive_avg_pool adaptive_max_pool"
RESIZES = """upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d
upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d _upsample_nearest_exact2d
reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d"""


def _names() -> list[str]:
    pools = [f"aten.{name}{n}d" for name in POOLS.split() for n in (1, 2, 3)]
    return [*pools, *(f"{name}_with_indices" for name in pools if "max_pool" in name)]


@rule(*_names(), *(f"aten.{name}" for name in RESIZES.split()))
def spatial(site: Site, x: Space, *settings: Any, **more: Any) -> Space | tuple[Space, ...]:
    """Every dimension but batch and channels is mixed."""
    if len(x.shape) < 3:
        raise NotCovered("values with batch and channels")
    x = mixed(site.atoms, x, set(range(2, len(x.shape))), site.mixes())
    factors = tuple(f for f in x.factors if max(f.dims) < 2)
    results = tuple(Space(shape, factors, fixed=x.fixed) for shape in site.shapes)
    return results if len(results) > 1 else results[0]


@rule("aten.im2col")
def unfold(site: Site, x: Space, kernel: list[int], *settings: Any) -> Space:
    """Patches: every channel gives one row for each position of the kernel."""
    if len(x.shape) != 4:
        raise NotCovered("values with batch and channels")
    x = mixed(site.atoms, x, {2, 3}, site.mixes())
    rows = math.prod(kernel) if len(kernel) > 1 else kernel[0] ** 2
    factors = []
    for factor in x.factors:
        if factor.dims == (1,):
            factors.append(Factor((1,), np.repeat(factor.atoms, rows)))
        elif factor.dims == (0,):
            factors.append(factor)
        else:
            site.atoms.pin(factor.atoms, site.mixes())
    return Space(site.shape, tuple(factors), fixed=x.fixed)


@rule("aten.pad", "aten.constant_pad_nd")
def pad(site: Site, x: Space, widths: list[int], mode: Any = "constant", *value: Any) -> Space:
    """Constants around the last dimensions. The added positions are never cut."""
    rank = len(x.shape)
    sizes = {rank - 1 - n: widths[2 * n : 2 * n + 2] for n in range(len(widths) // 2)}
    padded = {dim for dim, ends in sizes.items() if any(ends)}
    joint = {d for f in x.factors if len(f.dims) > 1 for d in f.dims}
    if min([0, *widths]) < 0 or (padded & joint) or (isinstance(mode, str) and mode != "constant"):
        x = mixed(site.atoms, x, padded, site.mixes())
        return Space(site.shape, tuple(f for f in x.factors if not set(f.dims) & padded))
    factors = [
        Factor(f.dims, np.pad(f.atoms, sizes[f.dims[0]])) if f.dims[0] in padded else f
        for f in x.factors
    ]
    return Space(site.shape, tuple(factors), fixed=x.fixed)


@rule("aten.pixel_shuffle", "aten.pixel_unshuffle")
def pixel_shuffle(site: Site, x: Space, factor: int) -> Space:
    """r^2 channels become one with r^2 times the positions, or the reverse: they are one unit."""
    x = mixed(site.atoms, x, {0, 2, 3} if len(x.shape) == 4 else {0, 1, 2, 3}, site.mixes())
    channels = x.at(1)
    if channels is None or len(channels.dims) > 1:
        return Space(site.shape, fixed=x.fixed)
    if site.shape[1] > x.shape[1]:
        return Space(site.shape, (Factor((1,), np.repeat(channels.atoms, factor**2)),))
    rows = channels.atoms.reshape(site.shape[1], -1)
    site.atoms.unite_along(rows, (1,), f"{site.where} needs whole blocks of channels")
    return Space(site.shape, (Factor((1,), rows[:, 0]),), fixed=x.fixed)
