"""How much of a tensor is there on average, exactly: the gates are independent.

Closed units of a group that can only zero them (nothing makes or selects them) still cost.

Differentiable in pi, so that a budget can pull at it.
"""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

from l0arm.gating.layout import Axis, Layout, TensorCut


def expected_share(layout: Layout, spec: TensorCut, shape: torch.Size, pi: Tensor) -> Tensor:
    """E[share left] of a tensor: the product over its dimensions of the mean of their positions.

    A group on two dimensions (a tied weight) makes them dependent: positions that share a gate are
    open with probability pi, not pi^2; the difference is added.
    """
    padded = torch.cat([pi, pi.new_ones(1)])  # gate V is always open
    positions = {dim: _open(axis, padded) for dim, axis in spec.axes.items()}
    if spec.elementwise:
        return _with_single_elements(layout, spec, shape, positions, pi)
    share = pi.new_ones(())
    for p in positions.values():
        share = share * p.mean()
    for (one, left), (other, right) in combinations(spec.axes.items(), 2):
        for group in _dropped(left) & _dropped(right):
            rest = [p.mean() for dim, p in positions.items() if dim not in (one, other)]
            extra = _dependence(layout, group, left, right, padded)
            share = share + extra * torch.stack([*rest, pi.new_ones(())]).prod()
    return share


def _open(axis: Axis, padded: Tensor, without: int | None = None) -> Tensor:
    """P(open) of every position of a dimension: all gates that reach it agree.

    A gate that reaches a position twice (a tied weight, made and read) counts once.
    """
    probability, seen = padded.new_ones(axis.size), list[Tensor]()
    for reach in axis.reaches:
        if reach.drops and reach.group != without:
            gates = reach.gates_on(padded.device)
            for earlier in seen:
                gates = torch.where(gates == earlier, len(padded) - 1, gates)
            seen.append(gates)
            probability = probability * padded[gates]
    return probability


def _dropped(axis: Axis) -> set[int]:
    """The groups whose closed units are not there."""
    return {reach.group for reach in axis.reaches if reach.drops}


def _dependence(layout: Layout, group: int, left: Axis, right: Axis, padded: Tensor) -> Tensor:
    """What one group on two dimensions adds: sum_u (pi_u - pi_u^2) of the pairs that share u."""
    pi = padded[:-1]
    one = _by_gate(group, left, _open(left, padded, without=group), padded)
    other = _by_gate(group, right, _open(right, padded, without=group), padded)
    span = layout.span(group)
    shared = ((pi - pi * pi) * one * other)[span].sum()
    return shared / (left.size * right.size)


def _by_gate(group: int, axis: Axis, values: Tensor, padded: Tensor) -> Tensor:
    """Values of positions summed by the gate of a group that reaches them."""
    reach = next(r for r in axis.reaches if r.group == group)
    gates = reach.gates_on(padded.device)
    return torch.zeros_like(padded).index_add(0, gates, values)[:-1]


def _with_single_elements(
    layout: Layout, spec: TensorCut, shape: torch.Size, positions: dict[int, Tensor], pi: Tensor
) -> Tensor:
    """Gates on single weights: every element has its own probability."""
    elements = pi.new_ones(shape)
    for group in spec.elementwise:
        elements = elements * pi[layout.span(group)].view(shape)
    for dim, p in positions.items():
        along = [1] * len(shape)
        along[dim] = -1
        elements = elements * p.view(along)
    return elements.mean()
