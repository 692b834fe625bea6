"""Sums, means and extremes over dimensions; softmax and running sums along one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from l0arm.planning.rules.base import NotCovered, Site, rule
from l0arm.planning.space import Space, mixed, simplified, without

OVER_SOME = """mean.dim sum.dim_IntList amax.default amin.default max.dim min.dim var.dim std.dim
var.correction std.correction logsumexp.default prod.dim_int any.dim all.dim argmax.default
argmin.default norm.ScalarOpt_dim linalg_vector_norm.default median.dim
var_mean.dim var_mean.correction std_mean.dim std_mean.correction"""
NORMS = ("norm", "linalg_vector_norm")  # their order comes before the dimensions


@rule(*(f"aten.{name}" for name in OVER_SOME.split()))
def over_some(site: Site, x: Space, *settings: Any, **more: Any) -> Space | tuple[Space, ...]:
    """Units in the other dimensions stay. A reduced dimension with units of its own is pinned."""
    if site.op in NORMS:
        settings = settings[1:]
    dim = more.get("dim", settings[0] if settings else None)
    listed = range(len(x.shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    dims = {d % len(x.shape) for d in listed} or set(range(len(x.shape)))
    passes = site.op == "mean" and site.passes_norm(x, dims)
    if passes or (x.constant and site.runs_over_all(x, dims)):
        x = simplified(site.atoms, x)
        x = x.relabelled([f for f in x.factors if not set(f.dims) & dims])
    reduced = without(site.atoms, x, dims, site.mixes())
    results = tuple(_kept(reduced, dims, shape) for shape in site.shapes)
    return results if len(results) > 1 else results[0]


def _kept(reduced: Space, dims: set[int], shape: tuple[int, ...]) -> Space:
    """The result, with the reduced dimensions at size 1 if the operator keeps them."""
    if len(shape) == len(reduced.shape):
        return replace(reduced, parameter=False)
    rest = [d for d in range(len(shape)) if d not in dims]
    if len(rest) != len(reduced.shape):
        raise NotCovered("a reduction over known dimensions")
    return replace(reduced.moved(dict(enumerate(rest)), shape), parameter=False)


@rule("aten.mean.default", "aten.sum.default", "aten.max.default", "aten.min.default")
def over_all(site: Site, x: Space, *settings: Any, **more: Any) -> Space:
    """A single number."""
    return without(site.atoms, x, set(range(len(x.shape))), site.mixes())


@rule("aten.tril", "aten.triu")
def triangle(site: Site, x: Space, *settings: Any, **more: Any) -> Space:
    """Zeros above or below a diagonal: the last two dimensions are positions by number."""
    rank = len(x.shape)
    return replace(mixed(site.atoms, x, {rank - 2, rank - 1}, site.mixes()), parameter=False)


@rule("aten.softmax", "aten._softmax", "aten.log_softmax", "aten.cumsum", "aten.cumprod")
def along(site: Site, x: Space, dim: int, *settings: Any, **more: Any) -> Space:
    """Every result along the dimension depends on several of its elements.

    Scores of experts pass a softmax: a closed one has none.
    """
    scored = site.routed(x, dim % len(x.shape)) if site.op == "softmax" else None
    if scored is not None:
        site.trace.scored.append(scored)
        return replace(x, parameter=False)
    return mixed(site.atoms, x, {dim % len(x.shape)}, site.mixes())
