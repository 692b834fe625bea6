"""A plan as text that fits 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap

WIDTH = 80
NAME = 34


@dataclass(frozen=True)
class Row:
    """What the table says of one group."""

    name: str
    units: int
    weights: int
    macs: int
    execution: str
    layers: tuple[str, ...]
    reason: str = ""  # why it is masked


def table(rows: Sequence[Row], skipped: Sequence[tuple[str, str]], weights: int, macs: int) -> str:
    """Groups with what they can free, then what is skipped and why."""
    units = sum(row.units for row in rows)
    lines = [
        f"{len(rows)} groups, {units:,} units, in a model of {weights:,} weights, {macs:,} MACs",
        f"{'group':<{NAME}} {'units':>6} {'weights':>11} {'MACs':>15}  execution",
    ]
    for row in rows:
        lines += _group(row)
    if any(row.execution == "masked" for row in rows):
        lines += wrap("masked: closed units are zeroed, compaction frees nothing of them", WIDTH)
    if skipped:
        lines += ["", "not gated"]
        for reason, layers in groupby(sorted(skipped, key=lambda s: s[1]), key=lambda s: s[1]):
            lines += _listed([layer for layer, _ in layers])
            lines += wrap(reason, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def _group(row: Row) -> list[str]:
    figures = f"{row.units:>6} {row.weights:>11,} {row.macs:>15,}  {row.execution}"
    head = f"{row.name:<{NAME}} {figures}"
    lines = [head] if len(head) <= WIDTH else [row.name[:WIDTH], f"{'':<{NAME}} {figures}"]
    others = [layer for layer in row.layers if layer != row.name]
    why = f"masked: {row.reason}" if row.reason else ""
    told = wrap(why, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return lines + _listed(others, "    ") + told


def _listed(names: Sequence[str], indent: str = "") -> list[str]:
    """Names with commas, wrapped; long ones are broken rather than let over the edge."""
    return wrap(", ".join(names), WIDTH, initial_indent=indent, subsequent_indent=indent)
