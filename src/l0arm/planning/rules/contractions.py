"""Linear layers and matrix products."""

from __future__ import annotations

from typing import Any

from l0arm.planning.contraction import product
from l0arm.planning.elementwise import combine
from l0arm.planning.registry import NotCovered, rule
from l0arm.planning.site import Site
from l0arm.planning.space import Space


def batch(rank: int) -> list[str]:
    """Names for the leading dimensions, counted from the last one as broadcasting does."""
    return [f"batch{n}" for n in range(rank, 0, -1)]


@rule("aten.linear")
def linear(site: Site, x: Space, weight: Space, bias: Space | None = None) -> Space:
    """x W^T + b: rows of W make units, columns read them."""
    lead = batch(len(x.shape) - 1)
    out = product(site, x, [*lead, "in"], weight, ["out", "in"], [*lead, "out"])
    return out if bias is None else combine(site, [out, bias], out.shape)


@rule("aten.matmul", "aten.bmm", "aten.mm", "aten.mv", "aten.dot")
def matmul(site: Site, a: Space, b: Space) -> Space:
    """a @ b with batch dimensions broadcast."""
    ia = [*batch(len(a.shape) - 2), "row", "in"][-len(a.shape) :]
    ib = [*batch(len(b.shape) - 2), "in", "column"] if len(b.shape) > 1 else ["in"]
    lead = batch(max(len(a.shape), len(b.shape)) - 2)
    out = [*lead, *(i for i in ("row", "column") if i in ia or i in ib)]
    return product(site, a, ia, b, ib, out)


@rule("aten.addmm", "aten.baddbmm")
def addmm(site: Site, bias: Space, a: Space, b: Space, **scales: Any) -> Space:
    """bias + a @ b."""
    out = matmul(site, a, b)
    return combine(site, [out, bias], out.shape)


@rule("aten.einsum")
def einsum(site: Site, equation: str, operands: list[Space], **path: Any) -> Space:
    """Any sum of products of two values; one value alone is permuted or reduced."""
    inputs, _, out = equation.replace(" ", "").partition("->")
    letters = inputs.split(",")
    if "..." in equation or len(operands) != 2 or any(len(set(i)) < len(i) for i in letters):
        raise NotCovered("an einsum of two values without repeated letters or dots")
    (a, b), (ia, ib) = operands, letters
    return product(site, a, ia, b, ib, out or _implied(inputs))


def _implied(inputs: str) -> str:
    return "".join(sorted(c for c in set(inputs) - {","} if inputs.count(c) == 1))
