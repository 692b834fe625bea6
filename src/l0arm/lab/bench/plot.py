"""The picture: step time against open fraction, one panel for each number of threads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

COLOURS = ("#1f6f8b", "#d1603d")


def draw(curves: Mapping[int, Any], path: Path) -> None:
    """Lines with bands are times, dashes are FLOPs; below 1 a gated step beats the dense one."""
    from matplotlib.figure import Figure  # an extra: measuring needs none

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
