"""The variance of estimators against that of ARM, at each stage of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from l0arm.plots.canvas import label_axes, legend_below, looks, new_figure, require

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Variance(Protocol):
    """The variance of one estimator at one stage, with its standard error."""

    @property
    def estimator(self) -> str: ...

    @property
    def stage(self) -> str: ...

    @property
    def unbiased(self) -> bool: ...

    @property
    def variance(self) -> float: ...

    @property
    def variance_error(self) -> float: ...


def estimator_variance(lines: Sequence[Variance], *, title: str = "") -> Figure:
    """A row for each estimator, a dot for each stage, on a logarithmic scale; 1 is ARM."""
    arm = {line.stage: line.variance for line in lines if line.estimator == "arm"}
    require(arm, "ARM was not measured", "it is what the others are compared with")
    names = list(dict.fromkeys(line.estimator for line in lines))
    biased = {line.estimator for line in lines if not line.unbiased}
    figure = new_figure(height=1.2 + 0.27 * len(names))
    axes = figure.subplots()
    look = looks(arm)
    for shift, stage in zip((0.2, 0.0, -0.2), arm, strict=False):
        of_stage = [line for line in lines if line.stage == stage and line.variance > 0]
        axes.errorbar(
            [line.variance / arm[stage] for line in of_stage],
            [len(names) - 1 - names.index(line.estimator) + shift for line in of_stage],
            xerr=[line.variance_error / arm[stage] for line in of_stage],
            fmt="o",
            markersize=4,
            color=look[stage].color,
            label=stage,
        )
    axes.set_xscale("log")
    axes.axvline(1.0, color="#666666", linewidth=0.8)
    axes.set_yticks(range(len(names)))
    axes.set_yticklabels([f"{n} (biased)" if n in biased else n for n in reversed(names)])
    label_axes(axes, "total variance / that of ARM", "", title)
    legend_below(figure, [axes])
    return figure
