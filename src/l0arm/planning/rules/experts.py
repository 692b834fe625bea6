"""Experts of a mixture: a stack of matrices, of which the router takes some for every token.

The numbers of the experts are data, so whole experts are no units here. The hidden units inside
are: one unit is the same position in all experts.
"""

from __future__ import annotations

from typing import Any

from l0arm.planning.rules.base import Site, rule
from l0arm.planning.rules.contraction import product
from l0arm.planning.space import Space


@rule("transformers.grouped_mm_fallback", "aten._grouped_mm")
def grouped_mm(
    site: Site, x: Space, weight: Space, offs: Space | None = None, **rest: Any
) -> Space:
    """Rows of x times the matrix of their expert: (rows, in) and (experts, in, out)."""
    return product(site, x, ["row", "in"], weight, ["expert", "in", "out"], ["row", "out"])
