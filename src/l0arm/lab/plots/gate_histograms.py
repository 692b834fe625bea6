"""Fig. 2: the histogram of g(phi) over the epochs, from one hill to two spikes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from l0arm.lab.plots.canvas import (
    PAGE_WIDTH,
    PANEL_WIDTH,
    label_axes,
    new_figure,
    panel_title,
    require,
)
from l0arm.lab.plots.protocols import Epoch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RIDGES = 14  # more would hide each other
OVERLAP = 3.0  # how many ridges high the tallest bin is
ALL = "all gates"


def gate_histograms(
    epochs: Sequence[Epoch], *, by_group: bool = False, per_row: int = 4, title: str = ""
) -> Figure:
    """One ridge for every few epochs, the last in front; for all gates, or a panel per group."""
    gated = [epoch for epoch in epochs if epoch.groups]
    require(gated, "no epoch has gates", "choose a run that has finished an epoch and is not dense")
    names = [group.name for group in gated[0].groups] if by_group else [ALL]
    columns = min(per_row, len(names))
    rows = -(-len(names) // columns)
    figure = new_figure(height=3.0 * rows, width=PAGE_WIDTH if columns > 2 else PANEL_WIDTH)
    panels = figure.subplots(rows, columns, squeeze=False)
    for number, axes in enumerate(panels.flat):
        if number >= len(names):
            axes.remove()
            continue
        _ridges(axes, evenly(gated, RIDGES), names[number])
        units = sum(shares_of(gated[-1], names[number])[1])
        heading = f"{names[number]} ({units:,} gates)"
        label_axes(axes, "g(φ)", "", panel_title(number, heading, len(names)))
        axes.grid(visible=False)
        if number % columns == 0:
            axes.set_ylabel("epoch", fontsize=9)
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def evenly(epochs: Sequence[Epoch], most: int) -> list[Epoch]:
    """At most so many epochs, evenly spaced, the first and the last among them."""
    if len(epochs) <= most:
        return list(epochs)
    return [epochs[round(n * (len(epochs) - 1) / (most - 1))] for n in range(most)]


def shares_of(epoch: Epoch, name: str) -> tuple[list[float], list[int]]:
    """Share and number of a group's gates in each bin; of all gates under the name ALL."""
    parts = [g.histogram for g in epoch.groups if name in (ALL, g.name)]
    counts = [sum(bins) for bins in zip(*parts, strict=True)]
    return [count / max(1, sum(counts)) for count in counts], counts


def _ridges(axes: Axes, epochs: Sequence[Epoch], name: str) -> None:
    """Steps, not smoothed curves: the bins are what was recorded."""
    import matplotlib

    shares = [shares_of(epoch, name)[0] for epoch in epochs]
    height = OVERLAP / max(max(share) for share in shares)
    colors = matplotlib.colormaps["cividis"](np.linspace(0.0, 0.85, len(epochs)))
    edges = np.linspace(0.0, 1.0, len(shares[0]) + 1)
    last = len(epochs) - 1
    for n, share in enumerate(shares):
        base = float(last - n)  # time runs towards the reader
        axes.stairs(
            base + height * np.array(share),
            edges,
            baseline=base,
            fill=True,
            facecolor=colors[n],
            edgecolor="white",
            linewidth=0.7,
            zorder=n + 2,
        )
        axes.axhline(base, color=colors[n], linewidth=0.6, zorder=n + 2)
    axes.set_yticks(range(len(epochs)), [str(epoch.epoch) for epoch in reversed(epochs)])
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(-0.2, last + OVERLAP + 0.2)
    axes.set_xticks([0.0, 0.5, 1.0])
