"""From measured times to the rows of a table: ratios, targets and verdicts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from l0arm.lab.bench.steps import AR, ARM, DENSE, OURS, PLAIN, Measured, Network
from l0arm.lab.bench.targets import RATIO, TARGETS, verdict
from l0arm.lab.bench.timing import Plan, Spread, fastest, ratio


def section(network: Network, plan: Plan, measured: Measured) -> dict[str, Any]:
    """One network: a row for every contestant, ARM / AR beneath each state."""
    rows = [_row(network, measured, DENSE, name) for name in (PLAIN, OURS)]
    for state in network.states:
        names = [name for at, name in measured.times if at == state]
        rows += [_row(network, measured, state, name) for name in names]
        rows.append(_arm_to_ar(network, measured, state))
    return {
        "network": network.name,
        "batch": len(network.batches[0][0]),
        "rounds": len(measured.times[DENSE, PLAIN]),
        "steps": plan.steps,
        "rows": rows,
    }


def _row(network: Network, measured: Measured, state: str, name: str) -> dict[str, Any]:
    times = measured.times
    own = times[state, name]
    to_plain = ratio(own, times[DENSE, PLAIN])
    targets = TARGETS.get((network.name, state, name), ())
    return {
        "state": state,
        "name": name,
        "ms": asdict(Spread.of(own)),
        "to_plain": asdict(to_plain),
        "fastest": fastest(own, times[DENSE, PLAIN]),
        "to_ours": asdict(ratio(own, times[DENSE, OURS])),
        "flops": measured.flops.get((state, name)),
        "targets": targets,
        "result": verdict(to_plain.median, targets),
    }


def _arm_to_ar(network: Network, measured: Measured, state: str) -> dict[str, Any]:
    """Not a step but a ratio of two: it stands in the column of ratios."""
    arm_to_ar = ratio(measured.times[state, ARM], measured.times[state, AR])
    targets = TARGETS.get((network.name, state, RATIO), ())
    return {
        "state": state,
        "name": RATIO,
        "ms": None,
        "to_plain": asdict(arm_to_ar),
        "fastest": fastest(measured.times[state, ARM], measured.times[state, AR]),
        "to_ours": None,
        "flops": measured.flops[state, ARM] / measured.flops[state, AR],
        "targets": targets,
        "result": verdict(arm_to_ar.median, targets),
    }
