"""The histograms of g(phi) that runs end with, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from l0arm.lab.plots.canvas import GREY, PALETTE, label_axes, new_figure, require
from l0arm.lab.plots.gate_histograms import ALL, shares_of
from l0arm.lab.plots.protocols import Epoch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 3


def last_histograms(runs: Mapping[str, Epoch], *, title: str = "") -> Figure:
    """A panel for each run: the share of its gates by g(phi) after its last epoch."""
    require(runs, "no run has gates", "name runs of a method with gates")
    rows = -(-len(runs) // COLUMNS)
    figure = new_figure(height=0.4 + 1.9 * rows)
    panels = figure.subplots(rows, COLUMNS, squeeze=False, sharex=True, sharey=True)
    for axes in panels.flat[len(runs) :]:
        axes.remove()
    for number, (axes, (label, epoch)) in enumerate(zip(panels.flat, runs.items(), strict=False)):
        share, counts = shares_of(epoch, ALL)
        edges = np.linspace(0.0, 1.0, len(share) + 1)
        axes.stairs(100 * np.array(share), edges, fill=True, color=PALETTE[0])
        axes.axvline(0.5, color=GREY, linewidth=0.8, linestyle="--")
        left = "% of gates" if number % COLUMNS == 0 else ""
        label_axes(axes, "g(φ)" if number + COLUMNS >= len(runs) else "", left)
        axes.set_title(f"{label}\n{sum(counts):,} gates", fontsize=8)
        axes.tick_params(labelbottom=True)
        axes.set_xlim(0.0, 1.0)
    if title:
        figure.suptitle(title, fontsize=11)
    return figure
