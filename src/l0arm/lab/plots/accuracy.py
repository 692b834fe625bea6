"""Fig. 5: test accuracy by epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from l0arm.lab.plots.canvas import (
    PANEL_WIDTH,
    label_axes,
    legend_below,
    looks,
    new_figure,
    require,
    whole_epochs,
)
from l0arm.lab.plots.protocols import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def accuracy_by_epoch(runs: Runs, *, title: str = "", lowest: float | None = None) -> Figure:
    """Test accuracy of the deterministic networks; ``lowest`` is where the axis begins.

    What lies below ``lowest`` is not drawn, and the label of the axis says so.
    """
    runs = {label: epochs for label, epochs in runs.items() if epochs}
    require(runs, "no run has finished an epoch", "wait for the first one")
    figure = new_figure(height=3.2, width=PANEL_WIDTH)
    axes = figure.subplots()
    for label, look in looks(runs).items():
        epochs = runs[label]
        values = [e.test_accuracy for e in epochs]
        axes.plot([e.epoch for e in epochs], values, label=label, **look.line(len(values)))
    worst = min(e.test_accuracy for epochs in runs.values() for e in epochs)
    cut = f", from {lowest:g} on" if lowest is not None and worst < lowest else ""
    label_axes(axes, "epoch", f"test accuracy (%{cut})", title)
    if lowest is not None:
        axes.set_ylim(bottom=lowest)
    whole_epochs(axes)
    legend_below(figure, [axes])
    return figure


def settled(runs: Runs) -> float:
    """Where an axis may begin: below it no run comes after the first tenth of its epochs."""
    later = [e.test_accuracy for epochs in runs.values() for e in epochs[len(epochs) // 10 :]]
    require(later, "no run has finished an epoch", "wait for the first one")
    margin = 0.1 * (max(later) - min(later))
    return round(min(later) - max(margin, 0.1), 1)
