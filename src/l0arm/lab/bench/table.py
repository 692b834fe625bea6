"""Results as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from l0arm.lab.bench.targets import COLUMNS

Result = dict[str, Any]  # what run.py stores as JSON


def text(result: Result) -> str:
    """All sections that were measured, with the environment on top."""
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
    """Columns as wide as they must be; the first two to the left, the rest to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if number < 2 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
    return "\n".join([title, lines[0], "-" * len(lines[0]), *lines[1:]])
