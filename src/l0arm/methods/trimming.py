"""Closing the least certain units until a network is as small as it has to be."""

from __future__ import annotations

import torch
from torch import Tensor

from l0arm.groups import Gated
from l0arm.groups.dead import follow_dead
from l0arm.penalties.cost import ExpectedCost, parameter_prices


def trimmed(gated: Gated, z: Tensor, at_most: float) -> Tensor:
    """z with units closed, from the lowest phi on, until ``at_most`` of the parameters are left.

    A group keeps its floor, and at least one unit. Units that lose their last path to the output
    close with those that cut it.
    """
    cost = ExpectedCost(gated, parameter_prices(gated))
    limit = at_most * cost.dense
    with torch.no_grad():
        for unit in torch.argsort(gated.phi.detach()).tolist():
            if float(cost((z > 0).to(gated.phi.dtype))) <= limit:
                break
            if z[unit] > 0 and _spare(gated, z, unit):
                z = z.clone()
                z[unit] = 0.0
                z = follow_dead(gated.layout, z)
    return z


def _spare(gated: Gated, z: Tensor, unit: int) -> bool:
    """Whether the unit's group has more open ones than it must keep."""
    number = int(gated.layout.group_of[unit])
    is_open = int((z[gated.layout.span(number)] > 0).sum())
    return is_open > max(1, gated.groups[number].floor)
