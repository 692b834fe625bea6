"""The kinds of cost that a budget can limit, and how a user writes a limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from l0arm.costs.budget import Budget, Budgets, Constraint
from l0arm.costs.expectation import Cost, byte_cost, parameter_cost
from l0arm.costs.flops import flop_cost
from l0arm.costs.latency_model import latency_cost
from l0arm.gating import Gated

Amount = str | float
BudgetLike = Amount | Mapping[str, Amount]


@dataclass(frozen=True)
class CostKind:
    """A kind of cost that a budget can limit."""

    name: str  # in messages
    build: Callable[[Gated], Cost]
    unit: str = ""  # amounts are written with it, such as "0.8 ms"; without one they are numbers

    def read(self, amount: Amount) -> tuple[float, bool]:
        """A number, and whether it is a share of the dense cost; otherwise it is an amount.

        >>> CostKind("FLOPs", parameter_cost).read("40%")
        (0.4, True)
        >>> CostKind("FLOPs", parameter_cost).read(2e8)
        (200000000.0, False)
        >>> CostKind("milliseconds", parameter_cost, unit="ms").read("0.8 ms")
        (0.8, False)
        """
        try:
            if isinstance(amount, str):
                text = amount.strip()
                if text.endswith("%"):
                    return float(text.removesuffix("%")) / 100, True
                if self.unit and text.endswith(self.unit):
                    return float(text.removesuffix(self.unit)), False
            elif not self.unit:  # with a unit, 0.8 could mean 80 % or 0.8 ms
                return float(amount), 0 < amount <= 1
        except ValueError:
            pass
        forms = "neither like '40%' nor a number"
        if self.unit:
            forms = (
                f"neither a share like '50%' nor an amount like '0.8 {self.unit}', both in quotes"
            )
        raise ValueError(f"budget {amount!r} is {forms}")


def _flop_cost(gated: Gated) -> Cost:
    example = gated.example
    if example is None or not (example.args or example.kwargs):
        raise ValueError(
            "a budget of FLOPs needs example_inputs=(x,), or example_kwargs={'x': x}, to count "
            "them on"
        )
    return flop_cost(gated, example)


def _latency_cost(gated: Gated) -> Cost:
    if gated.example is None:
        raise ValueError(
            "a budget of latency needs example_inputs=(x,): the batch whose latency counts"
        )
    return latency_cost(gated, gated.example)


KINDS = {
    "params": CostKind("parameters", parameter_cost),
    "bytes": CostKind("bytes", byte_cost),
    "flops": CostKind("FLOPs", _flop_cost),
    "latency": CostKind("milliseconds", _latency_cost, unit="ms"),
}


def budget_for(gated: Gated, budget: BudgetLike) -> Constraint:
    """The budget of a gated model from what a user writes: "40%", {"flops": 2e8}, {"latency": ...}.

    A mapping with several kinds limits all of them at once.

    FLOPs and latency are those of ``gated.example``. A limit that the floors of the groups and the
    layers without gates do not allow is refused.

    >>> from l0arm._sparsify import sparsify
    >>> from l0arm.models import LeNet5
    >>> budget_for(sparsify(LeNet5(), lam=0.0), "40%")
    Budget(parameters <= 40.0 %)
    """
    limits = budget if isinstance(budget, Mapping) else {"params": budget}
    if not limits or not set(limits) <= set(KINDS):
        raise ValueError(
            f"budget must limit one of {', '.join(KINDS)}, e.g. {{'flops': '40%'}}; got {budget!r}"
        )
    budgets = [_budget(gated, KINDS[kind], amount) for kind, amount in limits.items()]
    return budgets[0] if len(budgets) == 1 else Budgets(budgets)


def _budget(gated: Gated, kind: CostKind, amount: Amount) -> Budget:
    number, is_share = kind.read(amount)
    if not gated.gates.open_probability.requires_grad:
        raise ValueError(
            "the method's gates have no probability to pull at, so a budget cannot steer it; use "
            "an L0 method, e.g. method='l0-disarm'"
        )
    cost = kind.build(gated)
    share = number if is_share else number / cost.dense
    if not 0.0 < share <= 1.0:
        dense = f"{cost.dense:.4g}" if kind.unit else f"{cost.dense:,.0f}"
        raise ValueError(
            f"budget {amount!r} is {100 * share:.4g} % of the dense network's {kind.name} "
            f"({dense}); it must lie above 0 and at most at 100 %"
        )
    least = cost.least() / cost.dense
    if share < least:
        raise ValueError(
            f"a budget of {100 * share:.4g} % of the {kind.name} cannot be reached: with as few "
            f"units open as each group allows, {100 * least:.4g} % remain; gate more layers or "
            "raise the budget"
        )
    return Budget(cost, share, what=kind.name)
