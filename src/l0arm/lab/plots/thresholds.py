"""Is the result sensitive to tau? Prune rate and accuracy for thresholds from 0.1 to 0.9."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from l0arm.lab.plots.canvas import (
    GREY,
    PAGE_WIDTH,
    PANEL_WIDTH,
    label_axes,
    legend_below,
    looks,
    new_figure,
    panel_title,
    require,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from l0arm.lab.tables.thresholds import ThresholdCurve


def threshold_curves(curves: Sequence[ThresholdCurve]) -> Figure:
    """Prune rate above and test accuracy below, against tau (Sec. 3.2), a column per network.

    Args:
        curves: The runs. Only those with accuracies are in the lower panels.

    Returns:
        The figure. A dashed line marks tau = 0.5.

    Raises:
        ValueError: There is no run.

    Example:
        >>> from l0arm.lab.tables.thresholds import ThresholdCurve
        >>> rates, right = {0.1: 50.0, 0.9: 90.0}, {0.1: 98.0, 0.9: 60.0}
        >>> figure = threshold_curves([ThresholdCurve("MLP", "L0-ARM, seed 0", 60, rates, right)])
        >>> [axes.get_ylabel() for axes in figure.axes]
        ['prune rate (%)', 'test accuracy (%)']
    """
    require(curves, "there is no run", "name finished runs of an L0 method")
    names = {id(curve): f"{curve.label}, {curve.epochs} epochs" for curve in curves}
    look = looks(names.values())
    networks = list(dict.fromkeys(curve.network for curve in curves))
    measured = any(curve.accuracies for curve in curves)
    width = PAGE_WIDTH if len(networks) > 1 else PANEL_WIDTH
    figure = new_figure(height=6.2 if measured else 3.6, width=width)
    panels = figure.subplots(1 + measured, len(networks), squeeze=False)
    for column, network in enumerate(networks):
        own = [curve for curve in curves if curve.network == network]
        for row, axes in enumerate(panels[:, column]):
            drawn = [curve for curve in own if not row or curve.accuracies]
            if not drawn:
                axes.remove()
                continue
            for curve in drawn:
                values = curve.accuracies if row else curve.prune_rates
                style = look[names[id(curve)]].line(len(values))
                axes.plot(list(values), list(values.values()), label=names[id(curve)], **style)
            axes.axvline(
                0.5, color=GREY, linewidth=0.8, linestyle="--", label="τ = 0.5, the paper's"
            )
            title = panel_title(row * len(networks) + column, network, panels.size)
            what = "test accuracy (%)" if row else "prune rate (%)"
            label_axes(axes, "τ", what, title)
            axes.set_xlim(0.05, 0.95)
    legend_below(figure, figure.axes)
    return figure
