"""Choose units by score per cost: what a falling target leaves open, round by round."""

from __future__ import annotations

import torch
from torch import Tensor

from l0arm.costs.budget import Budget
from l0arm.gating import Gated
from l0arm.gating.mask import close_dead_units


def choose(gated: Gated, z: Tensor, scores: Tensor, left: float) -> Tensor:
    """Keep the open units with the highest score per cost, as many as the target allows.

    The price of a unit is what closing it would save of the budgeted cost, with the other units as
    they are in ``z``. Of every group at least the best unit stays.

    Args:
        gated: A gated network with a budget. It is not changed.
        z: The gates so far, 0 or 1. Closed ones stay closed.
        scores: One number per gate, larger for units that matter more.
        left: How much of the way to the budget is still to go. 1 leaves everything open, 0 meets
            the budget. Between them the costs fall by equal factors.

    Returns:
        The gates, 0 or 1.

    Raises:
        ValueError: If there is no budget.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((3, 4, 2)), budget="50%")
        >>> scores = torch.tensor([1.0, 2.0, 3.0, 0.1, 0.2, 0.3, 0.4])
        >>> choose(gated, torch.ones(7), scores, left=0.0)
        tensor([1., 1., 1., 0., 0., 0., 1.])
    """
    budget = gated.budget
    if budget is None:
        raise ValueError("the model has no budget; give one to sparsify(..., budget='40%')")

    def fits(mask: Tensor) -> bool:
        found = budget.shares(mask).values()
        return all(now <= end ** (1.0 - left) for now, _, end in found)

    value = score_per_cost(gated, z, scores)
    best = torch.zeros_like(z)
    for number in range(len(gated.groups)):
        span = gated.layout.span(number)
        best[span.start + int(value[span].argmax())] = 1.0
    order, low, high = value.argsort(descending=True), 0, int((z > 0).sum())

    def first(count: int) -> Tensor:
        mask = best.clone()
        mask[order[:count]] = 1.0
        return mask * (z > 0)

    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(first(middle)) else (low, middle - 1)
    return close_dead_units(gated.layout, first(low))


def score_per_cost(gated: Gated, z: Tensor, scores: Tensor) -> Tensor:
    """The score of every open unit, divided by the share of the budgeted costs that it takes.

    The costs are linear in each gate, so their slope is what closing a unit saves. Closed units
    have -1.
    """
    assert gated.budget is not None
    limits = [limit for limit in gated.budget.modules() if isinstance(limit, Budget)]
    with torch.enable_grad():
        gates = z.double().requires_grad_()
        costs = [limit.cost(gates) / limit.cost.dense for limit in limits]
        (price,) = torch.autograd.grad(torch.stack(costs).sum(), gates)
    return torch.where(z > 0, scores.double() / price.clamp(min=1e-12), -1.0)
