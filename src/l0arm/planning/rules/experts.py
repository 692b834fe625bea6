"""Experts of a mixture: a stack of matrices, of which the router takes some for every token.

The hidden units inside are units: the same position in all experts. Whole experts are units if the
plan is asked for them: a row of the router with the matrices that its number stands for. The
numbers are data. They are followed from the choice of the router to the stacks that they index.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from l0arm.planning.atoms import Array
from l0arm.planning.rules.base import NotCovered, Site, Trace, rule
from l0arm.planning.rules.contraction import product
from l0arm.planning.space import Space, mixed

# Operators that pass numbers of units on, or look units up by them.
NUMBERED = {
    *("view", "reshape", "_unsafe_view", "flatten", "squeeze", "unsqueeze", "to", "_to_copy"),
    *("clone", "contiguous", "detach", "alias", "sort", "histc", "cumsum", "index", "index_select"),
    *("embedding", "grouped_mm_fallback", "_grouped_mm"),
}


@rule("aten.topk")
def topk(
    site: Site, x: Space, count: int, dim: int = -1, *settings: Any, **more: Any
) -> tuple[Space, Space]:
    """The largest values along a dimension, and the numbers of their units."""
    dim %= len(x.shape)
    scored = site.routed(x, dim, count)
    if scored is None:
        x = mixed(site.atoms, x, {dim}, site.mixes())
    else:
        site.trace.chosen.append(scored)
        site.record_count(scored.atoms)
    rest = tuple(f for f in x.factors if dim not in f.dims)
    fixed = f"{site.where} chooses among the units"
    values = Space(site.shapes[0], rest, fixed=fixed)
    numbers = None if scored is None else scored.atoms
    return values, replace(values, shape=site.shapes[1], numbers=numbers)


@rule("aten.sort")
def sort(site: Site, x: Space, dim: int = -1, *settings: Any, **more: Any) -> tuple[Space, Space]:
    """Values in order, and where they came from. Numbers of units stay such."""
    values = mixed(site.atoms, x, {dim % len(x.shape)}, site.mixes())
    values = replace(values, shape=site.shapes[0], parameter=False)
    return values, replace(values, shape=site.shapes[1], numbers=None)


@rule("aten.histc")
def histc(site: Site, x: Space, bins: int = 100, low: float = 0, high: float = 0) -> Space:
    """How often every number occurs, in the order of the units."""
    if x.numbers is None or (bins, low, high) != (len(x.numbers), 0, len(x.numbers) - 1):
        raise NotCovered("one bin for every number")
    site.record_count(x.numbers)
    return replace(x, shape=site.shape, factors=())


@rule("transformers.grouped_mm_fallback", "aten._grouped_mm")
def grouped_mm(
    site: Site, x: Space, weight: Space, offs: Space | None = None, **rest: Any
) -> Space:
    """Rows of x times the matrix of their expert: (rows, in) and (experts, in, out)."""
    if offs is not None and offs.numbers is not None:
        weight = numbered(site, weight, 0, offs.numbers)
    return product(site, x, ["row", "in"], weight, ["expert", "in", "out"], ["row", "out"])


def settle_routers(trace: Trace) -> None:
    """Pin what a softmax mixes, unless the units are experts that a router chooses."""
    roots = [trace.atoms.roots(choice.atoms) for choice in trace.chosen]
    chosen = np.concatenate([*roots, np.zeros(0, np.int64)])
    for scored in trace.scored:
        if not np.isin(trace.atoms.roots(scored.atoms), chosen).all():
            trace.atoms.pin(scored.atoms, scored.reason)


def numbered(site: Site, stack: Space, dim: int, numbers: Array) -> Space:
    """A stack that is looked up by numbers of units: its positions there belong to them."""
    factor = stack.at(dim)
    if factor is None or len(factor.dims) > 1 or factor.atoms.size != numbers.size:
        site.atoms.pin(numbers, f"{site.where} looks up what is never cut by their numbers")
        return stack
    site.atoms.unite(factor.atoms, numbers, site.mixes())
    site.atoms.mark_read(factor.atoms)
    site.record_count(numbers)
    return stack.relabelled([f for f in stack.factors if f is not factor])
