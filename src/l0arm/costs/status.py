"""``gated.status()``: what the gates and the budget are doing, for people and for trackers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from l0arm.costs.expectation import parameter_cost
from l0arm.gating import Gated
from l0arm.gating.mask import close_dead_units

UNDECIDED = (0.1, 0.9)  # P(open) of a gate that could still go either way
BEHIND = 0.03  # of the dense cost: further from its target, a cost is called behind
MANY = 0.1  # share of undecided gates that is worth a word


@dataclass(frozen=True)
class CostStatus:
    """One cost, all as shares of the dense network's.

    Attributes:
        expected: E[cost] over draws.
        realised: The cost of the deterministic network (z-bar).
        target: The budget's target at this step. None: it is not limited.
        limit: The budget's target at the end. None: it is not limited.
    """

    expected: float
    realised: float
    target: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Status:
    """The state of a gated network. It prints as one screen.

    Attributes:
        costs: The costs by name: those of the budget, or parameters.
        gates: Number of gates.
        undecided: Gates with P(open) between 0.1 and 0.9.
        architecture: Open units of every group, with its size.
        nearly_empty: Groups with one open unit or none.
        verdict: What this means, in words.
    """

    costs: dict[str, CostStatus]
    gates: int
    undecided: int
    architecture: dict[str, tuple[int, int]]
    nearly_empty: tuple[str, ...]
    verdict: str

    def to_dict(self) -> dict[str, float]:
        """Numbers by name, for a tracker."""
        found: dict[str, float] = {}
        for name, cost in self.costs.items():
            found |= {f"{name}/expected": cost.expected, f"{name}/realised": cost.realised}
            if cost.target is not None:
                found[f"{name}/target"] = cost.target
        found |= {f"open/{name}": float(now) for name, (now, _) in self.architecture.items()}
        return {**found, "undecided": float(self.undecided)}

    def __str__(self) -> str:
        lines = [f"{'':14}{'expected':>10}{'z-bar':>10}{'target':>10}{'at the end':>12}"]
        for name, cost in self.costs.items():
            numbers = (cost.expected, cost.realised, cost.target, cost.limit)
            cells = ["" if n is None else f"{100 * n:.1f} %" for n in numbers]
            lines.append(f"{name:14}{cells[0]:>10}{cells[1]:>10}{cells[2]:>10}{cells[3]:>12}")
        lines.append(f"undecided     {self.undecided} of {self.gates} gates")
        shown = [f"{name} {now}/{units}" for name, (now, units) in self.architecture.items()]
        more = f", and {len(shown) - 12} more groups" if len(shown) > 12 else ""
        lines.append(f"open units    {', '.join(shown[:12])}{more}")
        lines.append(self.verdict)
        return "\n".join(lines)


def status_of(gated: Gated) -> Status:
    """The state of a gated network.

    Args:
        gated: The network.

    Returns:
        Costs, gates and a verdict.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 20, 3)), budget="50%", initial=0.95)
        >>> gated.status().verdict
        'on the way: the target is 100.0 % now and 50.0 % in the end'
    """
    with torch.no_grad():
        probability = gated.gates.open_probability
        z = close_dead_units(gated.layout, gated.deterministic()) != 0
    undecided = int(((probability > UNDECIDED[0]) & (probability < UNDECIDED[1])).sum())
    if gated.budget is None:
        cost = parameter_cost(gated)
        shares = [float(cost(p.double())) / cost.dense for p in (probability, z)]
        costs = {"parameters": CostStatus(*shares)}
    else:
        expected = gated.budget.shares(probability)
        realised = gated.budget.shares(z)
        costs = {
            name: CostStatus(share, realised[name][0], now, end)
            for name, (share, now, end) in expected.items()
        }
    counts = {
        group.name: (int(part.sum()), group.units)
        for group, part in zip(gated.groups, gated.per_group(z).values(), strict=True)
    }
    empty = tuple(name for name, (now, units) in counts.items() if now <= 1 < units)
    gates = len(probability)
    return Status(costs, gates, undecided, counts, empty, _verdict(costs, undecided, gates, empty))


def _verdict(
    costs: dict[str, CostStatus], undecided: int, gates: int, empty: tuple[str, ...]
) -> str:
    """The first thing that a person should know."""
    behind = [
        f"{name} are {100 * cost.expected:.1f} %, the target is {100 * cost.target:.1f} %"
        for name, cost in costs.items()
        if cost.target is not None and cost.expected > cost.target + BEHIND
    ]
    if behind:
        return f"behind: {'; '.join(behind)}. Raise gate_lr, or train longer"
    if empty:
        return f"nearly empty: {', '.join(empty[:5])}. The network may lose its function there"
    falling = [c for c in costs.values() if c.target is not None and c.limit is not None]
    if any(c.target > c.limit for c in falling if c.target is not None and c.limit is not None):
        worst = max(falling, key=lambda c: (c.target or 0.0) - (c.limit or 0.0))
        return (
            f"on the way: the target is {100 * (worst.target or 0):.1f} % now and "
            f"{100 * (worst.limit or 0):.1f} % in the end"
        )
    if undecided > MANY * gates:
        return f"undecided: {undecided} of {gates} gates could go either way. Train longer"
    return "decided" if not falling else "decided: the budget is met in expectation"
