"""From measured times to results: ratios and targets as JSON, the same as text, and the plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from l0arm.lab.bench.steps import (
    ALONE,
    AR,
    ARM,
    DENSE,
    DISARM,
    OURS,
    PLAIN,
    Curve,
    Measured,
    Network,
)
from l0arm.lab.bench.timing import Plan, Spread, fastest, ratio

COLUMNS = ("reach", "stretch", "beyond")
RATIO = "ARM / AR"
BEYOND = "ARM beyond it"
LIMITS = {
    "MLP, shrunk": (0.6, 0.35)
}  # milliseconds that a step with gates takes beyond a plain one
# Ratios to the plain dense step, by network, state and contestant.
TARGETS: dict[tuple[str, str, str], tuple[float, ...]] = {
    ("LeNet-5", "p = 0.5", ARM): (0.38, 0.30),
    ("LeNet-5, shrunk", "converged 6-10-39-11", ARM): (0.15, 0.10),
    ("MLP, shrunk", "converged 159-74-73", ARM): (0.40, 0.30),
    ("ResNet-20", "gates at 0.95", DISARM): (1.25, 1.10),
    ("ResNet-20", "half of the MACs open", DISARM): (0.75, 0.62),
    ("transformer", "half of the MACs open", DISARM): (0.80, 0.68),
    ("LeNet-5", "converged 6-10-39-11", ARM): (0.28, 0.21, 0.12),
    ("LeNet-5", "converged 6-10-39-11", RATIO): (1.10, 1.03),
    ("MLP", "p = 0.8/0.5/0.5", ARM): (0.90, 0.75),
    ("MLP", "converged 159-74-73", ARM): (0.6, 0.5, 0.35),
    ("WRN-28-10", "70 % open", ARM): (1.05, 0.90),
    ("WRN-28-10", "50 % open", ARM): (0.78, 0.68),
    ("WRN-28-10", "50 % open", AR): (0.58, 0.50),
}
COLOURS = ("#1f6f8b", "#d1603d")

Result = dict[str, Any]  # a part of what is stored as JSON


def section(network: Network, plan: Plan, measured: Measured) -> Result:
    """The results of one network: a row per contestant, and ARM / AR for each state."""
    rows = [_row(network, measured, DENSE, name) for name in (PLAIN, OURS)]
    for state in network.states:
        names = [name for at, name in measured.times if at == state]
        rows += [_row(network, measured, state, name) for name in names]
        if {ARM, AR} <= set(names):
            rows.append(_arm_to_ar(network, measured, state))
        if {ARM, ALONE} <= set(names):
            rows.append(_beyond(network, measured, state))
    return {
        "network": network.name,
        "batch": len(network.batches[0][0]),
        "rounds": len(measured.times[DENSE, PLAIN]),
        "steps": plan.steps,
        "rows": rows,
    }


def _row(network: Network, measured: Measured, state: str, name: str) -> Result:
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


def _arm_to_ar(network: Network, measured: Measured, state: str) -> Result:
    """The ratio of two gated steps, written in the column of ratios."""
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


def _beyond(network: Network, measured: Measured, state: str) -> Result:
    """What a gated step takes beyond a plain step of the same network: a difference."""
    gated, alone = measured.times[state, ARM], measured.times[state, ALONE]
    plain = measured.times[DENSE, PLAIN]
    differences = [a - b for a, b in zip(gated, alone, strict=True)]
    spread, targets = Spread.of(differences), LIMITS.get(network.name, ())
    return {
        "state": state,
        "name": BEYOND,
        "ms": asdict(spread),
        "to_plain": asdict(ratio(differences, plain)),
        "fastest": (min(gated) - min(alone)) / min(plain),
        "to_ours": None,
        "flops": None,
        "targets": targets,
        "result": verdict(spread.median, targets),
    }


def verdict(measured: float, targets: tuple[float, ...]) -> str:
    """The hardest target that was reached.

    >>> verdict(0.4, (0.48, 0.38)), verdict(0.5, (0.48, 0.38)), verdict(0.5, ())
    ('reach', 'missed', '')
    """
    reached = [name for name, t in zip(COLUMNS, targets, strict=False) if measured <= t]
    return reached[-1] if reached else "missed" if targets else ""


def text(result: Result) -> str:
    """All measured sections as text, with the environment on top."""
    parts = [_environment(result)]
    parts += [_steps(section) for section in result["steps"]]
    if result.get("inference"):
        parts.append(_inference(result["inference"]))
    if result.get("curve"):
        parts.append(_curve(result["curve"]))
    return "\n\n".join(parts) + "\n"


def _environment(result: Result) -> str:
    env = result["environment"]
    mode = "QUICK RUN, not for comparison\n" if result["quick"] else ""
    return (
        f"{mode}threads {env['threads']}, torch {env['torch']}, {env['cpu']}, "
        f"load {env['load_before']:.1f} before and {env['load_after']:.1f} after, "
        f"{env['seconds']:.0f} s\n"
        "Ratios are medians over the rounds, formed within each round, [smallest-largest];\n"
        "'fastest' compares the fastest block of each with the fastest plain dense one."
    )


def _steps(section: Result) -> str:
    head = ("state", "step", "ms", "/ plain dense", "fastest", "/ our dense", "FLOPs")
    rows = [
        (
            row["state"],
            row["name"],
            "" if row["ms"] is None else f"{row['ms']['median']:.2f}",
            _spread(row["to_plain"]),
            f"{row['fastest']:.3f}",
            _spread(row["to_ours"]),
            "" if row["flops"] is None else f"{row['flops']:.3f}",
            *(f"{t:.2f}" for t in row["targets"]),
            *[""] * (len(COLUMNS) - len(row["targets"])),
            row["result"],
        )
        for row in section["rows"]
    ]
    title = (
        f"{section['network']}, training step, batch {section['batch']}: "
        f"{section['rounds']} rounds of {section['steps']} steps"
    )
    return aligned(title, (*head, *COLUMNS, "result"), rows)


def _inference(rows: Sequence[Result]) -> str:
    head = (
        *("network", "batch", "dense ms", "compact ms", "/ plain dense", "/ our dense"),
        *("MACs", "launch floor", "limit", "which", "result"),
    )
    lines = [
        (
            row["network"],
            str(row["batch"]),
            f"{row['dense']['median']:.3f}",
            f"{row['compact']['median']:.3f}",
            _spread(row["to_dense"]),
            _spread(row["to_our_dense"]),
            f"{row['macs']:.3f}",
            f"{row['floor']:.3f}",
            f"{row['limit']:.3f}",
            row["which"],
            "within" if row["to_dense"]["median"] <= row["limit"] else "above",
        )
        for row in rows
    ]
    return aligned("Inference, compact against dense", head, lines)


def _curve(curve: Result) -> str:
    head = ("step", "", *(f"{f:g}" for f in next(iter(curve.values()))["fraction"]))
    lines = []
    for label, line in curve.items():
        lines.append((label, "time", *(f"{v:.2f}" for v in line["time"])))
        lines.append(("", "FLOPs", *(f"{v:.2f}" for v in line["flops"])))
    return aligned("LeNet-5, step / plain dense step, by open probability", head, lines)


def _spread(values: dict[str, float] | None) -> str:
    if values is None:
        return ""
    return f"{values['median']:.3f} [{values['low']:.2f}-{values['high']:.2f}]"


def aligned(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A text table: the first two columns are left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if number < 2 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
    return "\n".join([title, lines[0], "-" * len(lines[0]), *lines[1:]])


def draw(curves: Mapping[int, Curve], path: Path) -> None:
    """Plot step time by open fraction, a panel per number of threads.

    Lines with bands are times, dashed lines are FLOPs. Below 1 a gated step is faster than dense.
    """
    from matplotlib.figure import Figure  # optional: only the plot needs it

    figure = Figure(figsize=(4.6 * len(curves), 3.6))
    axes = figure.subplots(1, len(curves), sharey=True, squeeze=False)
    for axis, (threads, curve) in zip(axes[0], sorted(curves.items()), strict=True):
        for colour, (label, line) in zip(COLOURS, curve.items(), strict=True):
            x = line["fraction"]
            axis.fill_between(x, line["low"], line["high"], color=colour, alpha=0.2, linewidth=0)
            axis.plot(x, line["time"], color=colour, marker="o", markersize=3, label=label)
            axis.plot(x, line["flops"], color=colour, linestyle="--", label=f"{label}, FLOPs")
        axis.axhline(1.0, color="grey", linewidth=0.8)
        axis.set(title=f"{threads} thread{'s' if threads > 1 else ''}", xlim=(0, 1.02))
        axis.set_xlabel("probability that a gate is open")
    axes[0][0].set(ylabel="LeNet-5 step / plain dense step", ylim=(0, None))
    axes[0][0].legend(frameon=False, fontsize=8, loc="upper left")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
