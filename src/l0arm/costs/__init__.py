"""What a network costs: parameters, FLOPs, latency; counted, expected, limited."""

from l0arm.costs.budget import Budget, Budgets, BudgetWarning, Constraint
from l0arm.costs.expectation import Cost
from l0arm.costs.fitting import fit_threshold
from l0arm.costs.flops import ExpectedFlops, FlopsMeter, count_flops, expected_flops
from l0arm.costs.latency_model import LatencyWarning, latency_table
from l0arm.costs.layer_times import LatencyTable
from l0arm.costs.timing import Latency, latency

__all__ = [
    "Budget",
    "BudgetWarning",
    "Budgets",
    "Constraint",
    "Cost",
    "ExpectedFlops",
    "FlopsMeter",
    "Latency",
    "LatencyTable",
    "LatencyWarning",
    "count_flops",
    "expected_flops",
    "fit_threshold",
    "latency",
    "latency_table",
]
