"""LeNet-5's step time against the open fraction, beside what its FLOPs would say."""

from __future__ import annotations

from dataclasses import replace

from l0arm.lab.bench import states, steps
from l0arm.lab.bench.timing import Plan, Spread, ratio

FRACTIONS = (0.1, 0.25, 0.4, 0.6, 0.8, 1.0)

Curve = dict[str, dict[str, list[float]]]


def measure(plan: Plan) -> Curve:
    """For ARM and AR: the step over the plain dense step, its spread, and the FLOP ratio."""
    at = {f"{fraction:g}": states.uniform(fraction) for fraction in FRACTIONS}
    network = replace(steps.lenet5(), states=at, masked=frozenset())
    measured = steps.measure(network, plan)
    plain = measured.times[steps.DENSE, steps.PLAIN]
    curve: Curve = {}
    for label in (steps.ARM, steps.AR):
        spreads: list[Spread] = [ratio(measured.times[state, label], plain) for state in at]
        curve[label] = {
            "fraction": list(FRACTIONS),
            "time": [s.median for s in spreads],
            "low": [s.low for s in spreads],
            "high": [s.high for s in spreads],
            "flops": [measured.flops[state, label] for state in at],
        }
    return curve
