"""Fused attention. Units are whole heads, or positions within all heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from l0arm.planning.rules.base import Site, rule
from l0arm.planning.rules.contraction import batch, product
from l0arm.planning.rules.pointwise import combine
from l0arm.planning.space import Factor, Space, mixed


@rule("aten.scaled_dot_product_attention")
def attention(
    site: Site,
    q: Space,
    k: Space,
    v: Space,
    mask: Space | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Space:
    """softmax(q k^T / sqrt(d)) v."""
    if not site.trace.head_dims:  # the size of a head sets the scale
        q = mixed(site.atoms, q, {len(q.shape) - 1}, site.mixes())
        k = mixed(site.atoms, k, {len(k.shape) - 1}, site.mixes())
    if enable_gqa:
        k, v = (_repeated(s, q.shape[-3]) for s in (k, v))
    lead = batch(len(q.shape) - 2)
    scores = product(
        site,
        q,
        [*lead, "query", "d"],
        k,
        [*batch(len(k.shape) - 2), "key", "d"],
        [*lead, "query", "key"],
    )
    if mask is not None:
        scores = combine(site, [scores, mask], scores.shape)
    scores = mixed(site.atoms, scores, {len(scores.shape) - 1}, site.mixes())
    values = [*batch(len(v.shape) - 2), "key", "value"]
    return product(site, scores, [*lead, "query", "key"], v, values, [*lead, "query", "value"])


def _repeated(space: Space, heads: int) -> Space:
    """Keys or values of grouped queries: each of their heads serves several query heads."""
    dim = len(space.shape) - 3
    times = heads // space.shape[dim]
    factors = [
        Factor(f.dims, np.repeat(f.atoms, times, axis=f.along(dim))) if dim in f.dims else f
        for f in space.factors
    ]
    shape = (*space.shape[:dim], heads, *space.shape[dim + 1 :])
    return replace(space, shape=shape, factors=tuple(factors))
