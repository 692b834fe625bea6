"""Expected cost of a gated network: exact, since gates are independent, and differentiable in phi.

A unit of a group that can only zero its units (nothing makes or selects them) costs the same
whether it is open or closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Protocol

import torch
from torch import Tensor

from l0arm.gating import Gated
from l0arm.gating.layout import Axis, Layout, TensorCut, named_tensors


class Cost(Protocol):
    """One kind of cost of a gated network, such as parameters, FLOPs or milliseconds.

    A budget can limit anything with these three parts.
    """

    @property
    def dense(self) -> float:
        """The cost with all gates open."""
        ...

    def __call__(self, open_probability: Tensor) -> Tensor:
        """E[cost] for given open probabilities of all gates, differentiable in them."""
        ...

    def least(self) -> float:
        """The cost of the smallest network that the groups allow."""
        ...


class ExpectedCost:
    """``sum_l c_l E[open share of l]``, where c_l is what tensor l costs when all of it is there.

    This is the mean cost over draws. The scale of the prices is free: 1 per weight for parameters,
    the FLOPs of its layer for FLOPs.

    Args:
        gated: The gated network.
        prices: Price of each tensor, by name, for the open share of its elements.
        constant: What the network costs whatever the gates do.
        made: Prices for the open share of the units that a tensor makes.
        read: Prices for the open share of the units that a tensor reads.
        cuts: How tensors are cut, by name, if that is not what the prices go by.
    """

    def __init__(
        self,
        gated: Gated,
        prices: Mapping[str, float],
        constant: float = 0.0,
        made: Mapping[str, float] | None = None,
        read: Mapping[str, float] | None = None,
        cuts: Mapping[str, TensorCut] | None = None,
    ) -> None:
        tensors = named_tensors(gated.model)
        cuts = gated.layout.tensors if cuts is None else cuts
        self._layout = gated.layout
        priced = [(name, price, cuts.get(name)) for name, price in prices.items()]
        priced += [(name, price, units_made(cuts[name])) for name, price in (made or {}).items()]
        priced += [(name, price, units_read(cuts[name])) for name, price in (read or {}).items()]
        self._gated = [
            (price, replace(cut, elementwise=[]), tensors[name].shape)
            for name, price, cut in priced
            if cut is not None and cut.axes
        ]
        self._fixed = constant + sum(
            price for _, price, cut in priced if cut is None or not cut.axes
        )
        self.dense = constant + sum(price for _, price, _ in priced)

    def __call__(self, open_probability: Tensor) -> Tensor:
        """E[cost] for given open probabilities of all gates."""
        pi = open_probability
        if not self._gated:
            return pi.new_tensor(self._fixed)
        shares = [expected_share(self._layout, cut, shape, pi) for _, cut, shape in self._gated]
        prices = pi.new_tensor([price for price, _, _ in self._gated])
        return (prices * torch.stack(shares)).sum() + self._fixed

    @property
    def depends(self) -> bool:
        """Whether any gate changes the cost; gates on single weights do not."""
        return bool(self._gated)

    def least(self) -> float:
        """The cost with the fewest, cheapest units of each group open: its floor, at least one."""
        with torch.enable_grad():
            z = torch.ones(self._layout.gates, dtype=torch.float64)
            cost = self(z.requires_grad_())
            (price,) = torch.autograd.grad(cost, z) if cost.requires_grad else (z,)
        fewest = torch.zeros_like(price)
        for number, group in enumerate(self._layout.groups):
            span = self._layout.span(number)
            cheapest = price[span].topk(max(1, group.floor), largest=False).indices
            fewest[span.start + cheapest] = 1.0
        return float(self(fewest))


def parameter_cost(gated: Gated) -> ExpectedCost:
    """E[parameters left]: each costs 1; a tensor with several names counts once."""
    prices = {name: float(p.numel()) for name, p in gated.model.named_parameters()}
    return ExpectedCost(gated, prices)


def byte_cost(gated: Gated) -> ExpectedCost:
    """E[bytes left] of parameters and buffers, as they are saved."""
    model = gated.model
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    prices = {name: float(t.numel() * t.element_size()) for name, t in tensors.items()}
    return ExpectedCost(gated, prices)


def units_made(cut: TensorCut) -> TensorCut:
    """The part of a cut along dimensions on which units are made, not read."""
    return _along(cut, reading=False)


def units_read(cut: TensorCut) -> TensorCut:
    """The part of a cut along dimensions on which units are read."""
    return _along(cut, reading=True)


def _along(cut: TensorCut, *, reading: bool) -> TensorCut:
    axes = {
        dim: axis
        for dim, axis in cut.axes.items()
        if any(reach.reads and not reach.rows for reach in axis.reaches) == reading
    }
    return replace(cut, axes=axes, elementwise=[])


def expected_share(layout: Layout, cut: TensorCut, shape: torch.Size, pi: Tensor) -> Tensor:
    """E[share left] of a tensor: the product over its dimensions of the mean of their positions.

    A group on two dimensions (a tied weight) makes them dependent: positions that share a gate are
    open with probability pi, not pi^2. The difference is added.
    """
    padded = torch.cat([pi, pi.new_ones(1)])  # gate V is always open
    positions = {dim: _open(axis, padded) for dim, axis in cut.axes.items()}
    if cut.elementwise:  # every element has a probability of its own
        elements = pi.new_ones(shape)
        for group in cut.elementwise:
            elements = elements * pi[layout.span(group)].view(shape)
        for dim, p in positions.items():
            along = [1] * len(shape)
            along[dim] = -1
            elements = elements * p.view(along)
        return elements.mean()
    share = pi.new_ones(())
    for p in positions.values():
        share = share * p.mean()
    for (one, left), (other, right) in combinations(cut.axes.items(), 2):
        for group in _dropped(left) & _dropped(right):
            rest = [p.mean() for dim, p in positions.items() if dim not in (one, other)]
            extra = _dependence(layout, group, left, right, padded)
            share = share + extra * torch.stack([*rest, pi.new_ones(())]).prod()
    return share


def _open(axis: Axis, padded: Tensor, without: int | None = None) -> Tensor:
    """P(open) of every position of a dimension: all gates that reach it are open.

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
    """The groups whose closed units are removed from this dimension."""
    return {reach.group for reach in axis.reaches if reach.drops}


def _dependence(layout: Layout, group: int, left: Axis, right: Axis, padded: Tensor) -> Tensor:
    """What one group on two dimensions adds: sum_u (pi_u - pi_u^2) of the pairs that share u."""

    def by_gate(axis: Axis) -> Tensor:
        """P(open by all other groups), summed over the positions of each gate of the group."""
        reach = next(r for r in axis.reaches if r.group == group)
        others = _open(axis, padded, without=group)
        gates = reach.gates_on(padded.device)
        return torch.zeros_like(padded).index_add(0, gates, others)[:-1]

    pi = padded[:-1]
    shared = ((pi - pi * pi) * by_gate(left) * by_gate(right))[layout.span(group)].sum()
    return shared / (left.size * right.size)
