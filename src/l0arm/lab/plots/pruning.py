"""Fig. 3: prune rate, and expected FLOPs in training and inference, by epoch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from l0arm.lab.plots.canvas import (
    PAGE_WIDTH,
    PANEL_WIDTH,
    label_axes,
    legend,
    legend_below,
    looks,
    new_figure,
    panel_title,
    require,
    whole_epochs,
)
from l0arm.lab.plots.flops_curves import by_epoch, dense_flops, draw_flops
from l0arm.lab.plots.protocols import Columns, Runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def prune_rate_and_flops(columns: Columns) -> Figure:
    """Prune rates above, FLOPs below; a column for each choice of lambda, a colour for each run.

    The paper draws {"λ = 0.1/N": {"L0-HC": ..., "L0-AR": ..., "L0-ARM": ...}, "λ sep.": {...}}.
    """
    columns = {title: _with_gates(runs) for title, runs in columns.items() if _with_gates(runs)}
    look = looks(label for runs in columns.values() for label in runs)
    require(look, "no run has an epoch with gates", "train an L0 method first")
    figure = new_figure(height=5.8, width=PAGE_WIDTH if len(columns) > 1 else PANEL_WIDTH)
    panels = figure.subplots(2, len(columns), squeeze=False, sharex="col")
    for number, (title, runs) in enumerate(columns.items()):
        rates, flops = panels[:, number]
        for label, epochs in runs.items():
            rate = [e.prune_rate for e in epochs]
            rates.plot([e.epoch for e in epochs], rate, label=label, **look[label].line(len(rate)))
        curves = {label: by_epoch(epochs) for label, epochs in runs.items()}
        unit = draw_flops(flops, curves, look, dense_flops(runs))
        label_axes(rates, "", "prune rate (%)", panel_title(number, title, len(columns)))
        below = panel_title(number + len(columns), title, len(columns))
        label_axes(flops, "epoch", unit, below if len(columns) > 1 else "")
        rates.set_ylim(0.0, 100.0)
        whole_epochs(flops)
        legend(rates)
    _align(panels[1], {dense_flops(runs) for runs in columns.values()})
    legend_below(figure, panels[1])
    return figure


def _with_gates(runs: Runs) -> Runs:
    kept = {label: [e for e in epochs if e.flops_dense] for label, epochs in runs.items()}
    return {label: epochs for label, epochs in kept.items() if epochs}


def _align(panels: Iterable[Axes], dense: set[float]) -> None:
    """Panels of one network are compared, so they get one scale; others keep their own."""
    if len(dense) == 1:
        top = max(axes.get_ylim()[1] for axes in panels)
        for axes in panels:
            axes.set_ylim(0.0, top)
