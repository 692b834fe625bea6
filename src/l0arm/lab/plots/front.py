"""Accuracy against prune rate: every method, runs and quoted rows, and which are not dominated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from l0arm.lab.plots.canvas import (
    GREY,
    PAGE_WIDTH,
    PALETTE,
    label_axes,
    legend_below,
    new_figure,
    panel_title,
    require,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from l0arm.lab.tables.front import FrontPoint

TICKS = (70.0, 80.0, 90.0, 95.0, 98.0, 99.0, 99.5)  # prune rates
MARKS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--")
LOWEST = 97.2  # percent: points below are left out, and the panel says so


def pareto_front(
    points: Sequence[FrontPoint], fronts: Mapping[str, Sequence[FrontPoint]]
) -> Figure:
    """A panel for each network. The axis of prune rates is logarithmic in the weights left.

    Filled marks are runs, with a small dot for each seed. Hollow marks are rows that papers print.

    Args:
        points: All points.
        fronts: Those that no other point dominates, by the name of the front. A line joins them.

    Returns:
        The figure.

    Raises:
        ValueError: There is no point.

    Example:
        >>> from l0arm.lab.tables.front import FrontPoint
        >>> point = FrontPoint("MLP", "l0-arm", "mlp-l0-arm", "here", 13.3, 98.0, ((13.3, 98.0),))
        >>> pareto_front([point], {"not dominated": [point]}).axes[0].get_title()
        'MLP'
    """
    require(points, "there is no run and no row", "name a folder of runs")
    methods = sorted({point.method for point in points})
    look = {
        m: (
            PALETTE[n % len(PALETTE)],
            MARKS[n % len(MARKS)] if n < len(PALETTE) else "*<>hpd8"[n % 7],
        )
        for n, m in enumerate(methods)
    }
    networks = list(dict.fromkeys(point.network for point in points))
    figure = new_figure(height=4.6, width=PAGE_WIDTH * (1.25 if len(networks) > 1 else 0.8))
    panels = figure.subplots(1, len(networks), squeeze=False)[0]
    for number, (axes, network) in enumerate(zip(panels, networks, strict=True)):
        for (name, front), style in zip(fronts.items(), LINES, strict=False):
            line = [p for p in front if p.network == network and p.accuracy >= LOWEST]
            curve = ([p.left for p in line], [p.accuracy for p in line])
            axes.plot(*curve, style, color=GREY, linewidth=1.0, zorder=1, label=name)
        own = [p for p in points if p.network == network and p.accuracy >= LOWEST]
        for point in sorted(own, key=lambda p: methods.index(p.method)):
            color, mark = look[point.method]
            here = point.source == "here"
            for left, accuracy in point.seeds if len(point.seeds) > 1 else ():
                axes.plot([left], [accuracy], ".", color=color, markersize=3, zorder=2)
            axes.plot(
                *([point.left], [point.accuracy], mark),
                color=color,
                markerfacecolor=color if here else "white",
                markersize=6,
                zorder=3 if here else 2,
                label=point.method if here else f"{point.method}, quoted",
            )
        axes.set_xscale("log")
        ticks = [tick for tick in TICKS if any(p.left >= 0.7 * (100 - tick) for p in own)]
        ticks = [tick for tick in ticks if any(p.left <= 1.4 * (100 - tick) for p in own)]
        axes.set_xticks([100 - tick for tick in ticks], [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.invert_xaxis()
        hidden = sum(p.network == network for p in points) - len(own)
        if hidden:
            note = f"below {LOWEST:g} %, not shown: {hidden}"
            place = {"transform": axes.transAxes, "ha": "right"}
            axes.text(0.98, 0.02, note, fontsize=7, color=GREY, **place)
        left_label = "test accuracy (%)" if number == 0 else ""
        title = panel_title(number, network, len(networks))
        label_axes(axes, "prune rate (%), log scale of the weights left", left_label, title)
    legend_below(figure, panels)
    return figure
