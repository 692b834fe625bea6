"""What was gained: sparsity, FLOPs, time."""

from l0arm.metrics.flops import ExpectedFlops, FlopsMeter, count_flops, expected_flops
from l0arm.metrics.latency import Latency, latency
from l0arm.metrics.sparsity import architecture, expected_l0, prune_rate, weight_count

__all__ = [
    "ExpectedFlops",
    "FlopsMeter",
    "Latency",
    "architecture",
    "count_flops",
    "expected_flops",
    "expected_l0",
    "latency",
    "prune_rate",
    "weight_count",
]
