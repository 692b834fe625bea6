"""Linear layers, matrix products and einsum: sums of products, where weights read units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from l0arm.planning.atoms import Array
from l0arm.planning.rules.base import NotCovered, Site, rule
from l0arm.planning.rules.pointwise import combine
from l0arm.planning.space import Factor, Space, collapse, simplified, without

Letters = Sequence[str]


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
    """Any sum of products. Values are multiplied one after the other."""
    inputs, _, out = equation.replace(" ", "").partition("->")
    letters = inputs.split(",")
    if "..." in equation or any(len(set(i)) < len(i) for i in letters):
        raise NotCovered("an einsum without repeated letters or dots")
    implied = "".join(sorted(c for c in set(inputs) - {","} if inputs.count(c) == 1))
    out = out or implied
    x, known = operands[0], letters[0]
    for number, (value, own) in enumerate(zip(operands[1:], letters[1:], strict=True), start=2):
        needed = set(out).union(*letters[number:])
        kept = (
            out
            if number == len(operands)
            else [i for i in dict.fromkeys([*known, *own]) if i in needed]
        )
        x, known = product(site, x, known, value, own, kept), "".join(kept)
    summed = {place for place, letter in enumerate(known) if letter not in out}
    x = without(site.atoms, x, summed, site.mixes())
    return _spread(x, [letter for letter in known if letter in out], out)


def batch(rank: int) -> list[str]:
    """Index names for leading dimensions, counted from the last one as broadcasting does."""
    return [f"batch{n}" for n in range(rank, 0, -1)]


def product(site: Site, a: Space, ia: Letters, b: Space, ib: Letters, out: Letters) -> Space:
    """``einsum("ia,ib->out")``: indices missing from ``out`` are summed over."""
    letters_a, letters_b = list(ia), list(ib)
    inner, macs = [], 1
    for letter in [i for i in dict.fromkeys([*ia, *ib]) if i not in out]:
        if letter in letters_a and letter in letters_b:
            dims = letters_a.index(letter), letters_b.index(letter)
            macs *= max(a.shape[dims[0]], b.shape[dims[1]])
            inner += reading(site, a, dims[0], b, dims[1])
            a, b = _summed(site, a, dims[0]), _summed(site, b, dims[1])
            letters_a.remove(letter)
            letters_b.remove(letter)
        elif letter in letters_a:
            a = without(site.atoms, a, {letters_a.index(letter)}, site.mixes())
            letters_a.remove(letter)
        else:
            b = without(site.atoms, b, {letters_b.index(letter)}, site.mixes())
            letters_b.remove(letter)
    a, b = _spread(a, letters_a, out), _spread(b, letters_b, out)
    shape = tuple(max(n, m) for n, m in zip(a.shape, b.shape, strict=True))
    result = combine(site, [a, b], shape)
    if site.trace.head_dims and not (a.parameter or b.parameter):
        for factor in result.factors:
            site.record_within(factor.atoms)
    site.record_work(math.prod(shape) * macs, [f.atoms for f in result.factors] + inner)
    return result


def reading(site: Site, a: Space, dim_a: int, b: Space, dim_b: int) -> list[Array]:
    """Sum over a dimension of both values.

    If one of them is a weight, it reads the units of the other. The result has the atoms of the
    summed dimension if units can shrink it, otherwise it is empty.
    """
    if b.parameter or not a.parameter:
        x, dim, weight, dim_w = a, dim_a, b, dim_b
    else:
        x, dim, weight, dim_w = b, dim_b, a, dim_a
    fx = simplified(site.atoms, x).at(dim)
    fw = simplified(site.atoms, weight).at(dim_w)
    is_held = weight.parameter or (weight.constant and site.is_over_all(fw))
    if is_held and not x.parameter:
        return _read(site, x, fx, dim, fw)
    computed = (weight.constant and not x.constant) or a.parameter
    if site.trace.head_dims and fx is not None and fw is not None and not computed:
        return _dotted(site, a, b, dim_a, dim_b)
    reason = f"{site.where} sums over units outside of any weight"
    if weight.constant and not x.constant:  # standardised, for example
        reason = f"{site.where} reads the units by a weight that is computed, not held"
    for factor, where in ((fx, dim), (fw, dim_w)):
        if factor is not None:
            collapse(site.atoms, factor, {where}, reason)
    return []


def _read(site: Site, x: Space, fx: Factor | None, dim: int, fw: Factor | None) -> list[Array]:
    """``reading`` for a value (factor ``fx``) and a weight (factor ``fw``)."""
    if fw is None or len(fw.dims) > 1:
        reason = f"{site.where} reads the units by a weight that cannot be cut"
        for factor in (fx, fw):
            if factor is not None:
                site.atoms.pin(factor.atoms, reason)
        return []
    if fx is not None and len(fx.dims) == 1:
        site.atoms.unite(fx.atoms, fw.atoms, site.mixes())
        site.atoms.mark_read(fw.atoms)
        return [fw.atoms]
    site.atoms.pin(fw.atoms, f"{site.where} reads what is never cut ({x.fixed or 'not labelled'})")
    if fx is not None:
        collapse(site.atoms, fx, {dim}, site.mixes())
    return []


def _dotted(site: Site, a: Space, b: Space, dim_a: int, dim_b: int) -> list[Array]:
    """``reading`` for queries and keys: zeros for a position of the queries close it in both."""
    atoms, rows = site.atoms, []
    for x, dim in ((a, dim_a), (b, dim_b)):
        factor = simplified(atoms, x).at(dim)
        assert factor is not None
        rows.append(collapse(atoms, factor, set(factor.dims) - {dim}, site.mixes()).atoms)
    queries = atoms.members(rows[0])
    atoms.mark_factor(queries, only=not np.isin(atoms.roots(rows[1]), atoms.roots(queries)).any())
    atoms.unite(rows[0], rows[1], site.mixes())
    site.record_within(rows[0], a, b)
    return [rows[0]]


def _summed(site: Site, x: Space, dim: int) -> Space:
    """The value without a dimension that ``reading`` has dealt with."""
    x = simplified(site.atoms, x)
    kept = x.relabelled([f for f in x.factors if dim not in f.dims])
    return without(site.atoms, kept, {dim}, "")


def _spread(space: Space, letters: Letters, out: Letters) -> Space:
    """The value along the indices of the result, with size 1 for those it lacks."""
    to = {dim: out.index(letter) for dim, letter in enumerate(letters)}
    shape = [1] * len(out)
    for dim, place in to.items():
        shape[place] = space.shape[dim]
    return space.moved(to, tuple(shape))
