"""Fig. 4: expected FLOPs in training and inference by iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from l0arm.lab.plots.canvas import (
    PAGE_WIDTH,
    PANEL_WIDTH,
    label_axes,
    legend_below,
    looks,
    new_figure,
    panel_title,
    require,
)
from l0arm.lab.plots.flops_curves import by_step, dense_flops, draw_flops
from l0arm.lab.plots.protocols import Columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def flops_by_step(columns: Columns) -> Figure:
    """A panel for each data set; the paper draws {"CIFAR-10": {"L0-AR": ...}, "CIFAR-100": {...}}.

    The panels do not share an axis: their networks need not be of one size.
    """
    curves = {
        title: {label: by_step(epochs) for label, epochs in runs.items() if by_step(epochs).at}
        for title, runs in columns.items()
        if any(by_step(epochs).at for epochs in runs.values())
    }
    look = looks(label for runs in curves.values() for label in runs)
    require(look, "no run recorded FLOPs by step", "train an L0 method first")
    figure = new_figure(height=3.5, width=PAGE_WIDTH if len(curves) > 1 else PANEL_WIDTH)
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for number, (title, runs) in enumerate(curves.items()):
        axes = panels[number]
        unit = draw_flops(axes, runs, look, dense_flops(columns[title]))
        label_axes(axes, "iteration", unit, panel_title(number, title, len(curves)))
        axes.xaxis.set_major_formatter("{x:,.0f}")
    legend_below(figure, panels)
    return figure
