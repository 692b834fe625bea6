"""What a network costs: parameters, FLOPs, latency; counted, expected, limited."""

from l0arm.costs._latency import Latency, latency
from l0arm.costs.budgeting import fit_threshold
from l0arm.costs.flops import ExpectedFlops, FlopsMeter, count_flops, expected_flops

__all__ = [
    "ExpectedFlops",
    "FlopsMeter",
    "Latency",
    "count_flops",
    "expected_flops",
    "fit_threshold",
    "latency",
]
