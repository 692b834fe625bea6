"""From what a user may spend ("40%", {"flops": 2e8}, {"latency": "0.8 ms"}) to a constraint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from l0arm.costs.budget import Budget
from l0arm.costs.cost import ExpectedCost, flop_prices, parameter_prices
from l0arm.costs.flops import flops_by_module
from l0arm.costs.latency_pricing import expected_latency
from l0arm.equality.example import Example
from l0arm.gating import Gated

Amount = str | float
BudgetLike = Amount | Mapping[str, Amount]


def budget_for(gated: Gated, budget: BudgetLike, inputs: Sequence[Any], **options: Any) -> Budget:
    """The budget of a gated model; a share of the dense cost, or an amount of it.

    >>> from l0arm._sparsify import sparsify
    >>> from l0arm.models import LeNet5
    >>> budget_for(sparsify(LeNet5(), lam=0.0), "40%", ())
    Budget(parameters <= 40.0 %)
    """
    what, amount = _parsed(budget)
    number, is_share = _read(amount, what)
    if not gated.gates.open_probability.requires_grad:
        raise ValueError(
            "the method's gates have no probability to pull at, so a budget cannot steer it; use "
            "an L0 method, e.g. method='l0-disarm'"
        )
    cost = COSTS[what](gated, inputs)
    share = number if is_share else number / cost.dense
    _check_share(share, amount, cost, what)
    _check_reachable(gated, cost, share, what)
    return Budget(cost, share, what=NAMES[what], **options)


def _parsed(budget: BudgetLike) -> tuple[str, Amount]:
    """What is limited, and to how much."""
    if not isinstance(budget, Mapping):
        return "params", budget
    if len(budget) != 1 or next(iter(budget)) not in COSTS:
        raise ValueError(
            f"budget must limit one of {', '.join(COSTS)}, e.g. {{'flops': '40%'}}; got {budget!r}"
        )
    return next(iter(budget.items()))


def _read(amount: Amount, what: str) -> tuple[float, bool]:
    """A number, and whether it is a share of the dense cost; else it is an amount of it.

    >>> _read("40%", "flops"), _read(2e8, "flops"), _read("0.8 ms", "latency")
    ((0.4, True), (200000000.0, False), (0.8, False))
    """
    try:
        if isinstance(amount, str):
            return _read_text(amount.strip(), what)
        if what == "latency":  # 0.8 could be meant as 80 % or as 0.8 ms
            raise ValueError
        return float(amount), 0 < amount <= 1
    except ValueError:
        raise ValueError(f"budget {amount!r} is {FORMS.get(what, FORMS['params'])}") from None


def _read_text(text: str, what: str) -> tuple[float, bool]:
    if text.endswith("%"):
        return float(text.removesuffix("%")) / 100, True
    if what == "latency" and text.endswith("ms"):
        return float(text.removesuffix("ms")), False
    raise ValueError


def _check_share(share: float, amount: Amount, cost: ExpectedCost, what: str) -> None:
    if not 0.0 < share <= 1.0:
        dense = f"{cost.dense:.4g}" if what == "latency" else f"{cost.dense:,.0f}"
        raise ValueError(
            f"budget {amount!r} is {100 * share:.4g} % of the dense network's {NAMES[what]} "
            f"({dense}); it must lie above 0 and at most at 100 %"
        )


def _check_reachable(gated: Gated, cost: ExpectedCost, share: float, what: str) -> None:
    """Refuse what the floors of the groups, and the layers without gates, do not allow."""
    least = cost.least(gated) / cost.dense
    if share < least:
        raise ValueError(
            f"a budget of {100 * share:.4g} % of the {NAMES[what]} cannot be reached: with as few "
            f"units open as each group allows, {100 * least:.4g} % remain; gate more layers or "
            "raise the budget"
        )


def _parameters(gated: Gated, inputs: Sequence[Any]) -> ExpectedCost:
    return ExpectedCost(gated, parameter_prices(gated))


def _flops(gated: Gated, inputs: Sequence[Any]) -> ExpectedCost:
    kwargs = {} if gated.example is None else gated.example.kwargs
    if not inputs and not kwargs:
        raise ValueError(
            "a budget of FLOPs needs example_inputs=(x,), or example_kwargs={'x': x}, to count "
            "them on"
        )
    prices, constant = flop_prices(gated, flops_by_module(gated, *inputs, **kwargs))
    return ExpectedCost(gated, prices, constant)


def _latency(gated: Gated, inputs: Sequence[Any]) -> ExpectedCost:
    kwargs = None if gated.example is None else gated.example.kwargs
    example = Example.of(list(inputs), kwargs) if inputs else gated.example
    if example is None:
        raise ValueError(
            "a budget of latency needs example_inputs=(x,): the batch whose latency counts"
        )
    return expected_latency(gated, example)


COSTS: dict[str, Callable[[Gated, Sequence[Any]], ExpectedCost]] = {
    "params": _parameters,
    "flops": _flops,
    "latency": _latency,
}
NAMES = {"params": "parameters", "flops": "FLOPs", "latency": "milliseconds"}
FORMS = {
    "params": "neither like '40%' nor a number",
    "latency": "neither a share like '50%' nor an amount like '0.8 ms', both in quotes",
}


def fit_threshold(gated: Gated) -> float:
    """Set ``gated.threshold`` so that the network left by it fits the budget; gives tau (Eq. 14).

    Gates that have not settled make the deterministic network differ from the expected one. Among
    the thresholds that fit, the one that leaves most is taken.
    """
    if not isinstance(gated.budget, Budget):
        raise ValueError("the model has no budget; give one to sparsify(..., budget='40%')")
    before, candidates = gated.threshold, _thresholds(gated.gates.open_probability.detach())
    low, high = 0, len(candidates) - 1
    while low < high:  # the cost falls as tau rises
        middle = (low + high) // 2
        low, high = (low, middle) if _fits(gated, candidates[middle]) else (middle + 1, high)
    if not _fits(gated, candidates[low]):
        gated.threshold = before
        raise ValueError(
            f"no threshold makes the network fit the budget, {gated.budget.extra_repr()}: gates "
            "that are open for sure or close by themselves (l0-hc) heed none, and floors keep "
            "units open; train longer, or with a higher gate_lr"
        )
    return candidates[low]


def _thresholds(pi: Tensor) -> list[float]:
    """All that matter, from one below every gate to one above them, sorted."""
    levels = torch.unique(pi.clamp(1e-6, 1 - 1e-6)).double()
    between = ((levels[1:] + levels[:-1]) / 2).tolist()
    return [float(levels[0]) / 2, *between, float(levels[-1])]


def _fits(gated: Gated, tau: float) -> bool:
    """Whether the network left by tau fits the budget; sets ``gated.threshold``."""
    assert isinstance(gated.budget, Budget)
    gated.threshold = tau
    left = (gated.deterministic() != 0).double()  # sums beyond 2^24 are exact
    return float(gated.budget.cost(left)) <= gated.budget.target * gated.budget.cost.dense
