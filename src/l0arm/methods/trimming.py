"""Closing the least certain units until a network is as small as it has to be."""

from __future__ import annotations

import torch
from torch import Tensor

from l0arm.costs.expectation import Cost, parameter_cost
from l0arm.gating import Gated
from l0arm.gating.dead import follow_dead


def check_reachable(gated: Gated, at_most: float) -> None:
    """Refuse a size that the groups cannot be trimmed to."""
    cost = parameter_cost(gated)
    least = cost.least() / cost.dense
    if least > at_most:
        raise ValueError(
            f"at_most={at_most:.4g} cannot be reached: with as few units open as each group "
            f"allows, {least:.4g} of the parameters are left; gate more layers, or raise at_most"
        )


def trimmed(gated: Gated, z: Tensor, at_most: float) -> Tensor:
    """z with units closed, from the lowest phi on, until ``at_most`` of the parameters are left.

    A group keeps its floor, and at least one unit, and all units that would save nothing. Units
    that lose their last path to the output close with those that cut it.
    """
    cost = parameter_cost(gated)
    limit, left = at_most * cost.dense, _left(cost, z)
    for unit in torch.argsort(gated.phi.detach()).tolist():
        if left <= limit:
            break
        if z[unit] > 0 and _spare(gated, z, unit):
            without = z.clone()
            without[unit] = 0.0
            without = follow_dead(gated.layout, without)
            saved = left - _left(cost, without)
            z, left = (without, left - saved) if saved > 0 else (z, left)
    return z


def _left(cost: Cost, z: Tensor) -> float:
    with torch.no_grad():
        return float(cost((z > 0).double()))


def _spare(gated: Gated, z: Tensor, unit: int) -> bool:
    """Whether the unit's group has more open ones than it must keep."""
    number = int(gated.layout.group_of[unit])
    is_open = int((z[gated.layout.span(number)] > 0).sum())
    return is_open > max(1, gated.groups[number].floor)
