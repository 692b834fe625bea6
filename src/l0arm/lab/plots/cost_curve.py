"""Accuracy against cost, one point for each threshold that a run was compacted at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from l0arm.lab.plots.canvas import (
    GREY,
    PALETTE,
    PANEL_WIDTH,
    label_axes,
    legend,
    new_figure,
    require,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Point(Protocol):
    """A network and what it costs."""

    @property
    def threshold(self) -> float: ...

    @property
    def accuracy(self) -> float: ...

    @property
    def macs(self) -> int: ...

    @property
    def pareto(self) -> bool: ...


def cost_curve(points: Sequence[Point], *, title: str = "") -> Figure:
    """All points in grey, the Pareto points joined, each with its threshold."""
    require(points, "no threshold was tried", "give at least one")
    figure = new_figure(height=3.2, width=PANEL_WIDTH)
    axes = figure.subplots()
    behind = [p for p in points if not p.pareto]
    best = sorted((p for p in points if p.pareto), key=lambda p: p.macs)
    if behind:
        x, y = [p.macs for p in behind], [p.accuracy for p in behind]
        axes.plot(x, y, "o", color=GREY, markersize=4, label="another is as good and cheaper")
    x, y = [p.macs for p in best], [p.accuracy for p in best]
    axes.plot(x, y, "o-", color=PALETTE[0], markersize=5, label="Pareto points")
    for point in best:
        axes.annotate(
            f"{point.threshold:g}",
            (point.macs, point.accuracy),
            textcoords="offset points",
            xytext=(4, -9),
            fontsize=7,
        )
    label_axes(axes, "multiply-adds for one input", "test accuracy (%)", title)
    legend(axes, loc="lower right")
    return figure
