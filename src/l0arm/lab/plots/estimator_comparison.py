"""Bias, variance and cost of estimators, at each stage of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from l0arm.lab.plots.canvas import GREY, Look, label_axes, legend_below, looks, new_figure, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHIFTS = (0.22, 0.0, -0.22)  # of the stages within the row of an estimator


class Compared(Protocol):
    """One estimator at one stage, with its errors."""

    @property
    def estimator(self) -> str: ...

    @property
    def stage(self) -> str: ...

    @property
    def unbiased(self) -> bool: ...

    @property
    def ratio(self) -> float: ...

    @property
    def ratio_error(self) -> float: ...

    @property
    def bias(self) -> float: ...

    @property
    def bias_error(self) -> float: ...

    @property
    def bias_limit(self) -> float: ...

    @property
    def bias_shown(self) -> bool: ...

    @property
    def evaluations(self) -> float: ...

    @property
    def seconds(self) -> float: ...

    @property
    def seconds_spread(self) -> float: ...


def estimator_comparison(lines: Sequence[Compared], *, title: str = "") -> Figure:
    """A row for each estimator, a mark for each stage; all scales are logarithmic.

    A bias that is not shown by the draws is a triangle at its upper limit, pointing to 0.
    """
    require(lines, "no estimator was measured", "name one at least")
    names = list(dict.fromkeys(line.estimator for line in reversed(lines)))
    look = looks(line.stage for line in lines)
    figure = new_figure(height=1.6 + 0.27 * len(names))
    left, middle, right = panels = figure.subplots(1, 3, sharey=True)
    for shift, stage in zip(SHIFTS, look, strict=False):
        rows = [(names.index(x.estimator) + shift, x) for x in lines if x.stage == stage]
        _bias(left, rows, look[stage])
        varying = [(at, x) for at, x in rows if x.ratio > 0]
        _dots(middle, varying, "ratio", "ratio_error", look[stage], stage)
        _dots(right, rows, "seconds", "seconds_spread", look[stage], stage, scale=1000)
    _name(left, lines, names)
    middle.axvline(1.0, color=GREY, linewidth=0.8)
    labels = (
        "bias / |gradient|\n(triangle: at most)",
        "total variance / ARM's",
        "ms (evaluations)",
    )
    for axes, label in zip(panels, labels, strict=True):
        axes.set_xscale("log")
        label_axes(axes, label, "")
        axes.minorticks_off()
    _evaluations(right, lines, names)
    figure.suptitle(title, fontsize=10)
    legend_below(figure, panels)
    return figure


def _bias(axes: Axes, rows: Sequence[tuple[float, Compared]], look: Look) -> None:
    """Dots with errors where a bias is shown, triangles where there is but a limit."""
    _dots(axes, [(at, x) for at, x in rows if x.bias_shown], "bias", "bias_error", look)
    limits = [(x.bias_limit, at) for at, x in rows if not x.bias_shown and x.bias_limit > 0]
    axes.plot(
        [value for value, _ in limits],
        [at for _, at in limits],
        linestyle="",
        marker="<",
        markersize=4,
        markerfacecolor="none",
        color=look.color,
    )


def _dots(
    axes: Axes,
    rows: Sequence[tuple[float, Compared]],
    value: str,
    error: str,
    look: Look,
    label: str = "",
    scale: float = 1.0,
) -> None:
    """Values with their errors; the bar never reaches 0, which a logarithm has no place for."""
    values = [scale * getattr(x, value) for _, x in rows]
    errors = [scale * getattr(x, error) for _, x in rows]
    down = [min(e, 0.9 * v) for v, e in zip(values, errors, strict=True)]
    axes.errorbar(
        values,
        [at for at, _ in rows],
        xerr=[down, errors],
        fmt="o",
        markersize=4,
        color=look.color,
        label=label,
    )


def _name(axes: Axes, lines: Sequence[Compared], names: Sequence[str]) -> None:
    biased = {line.estimator for line in lines if not line.unbiased}
    axes.set_yticks(range(len(names)))
    axes.set_yticklabels([f"{name} (biased)" if name in biased else name for name in names])


def _few_ticks(axes: Axes) -> None:
    """1, 3, 10 in plain numbers: costs may lie within one decade."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator

    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))


def _evaluations(axes: Axes, lines: Sequence[Compared], names: Sequence[str]) -> None:
    """How often f is evaluated, at the right end of the row."""
    for row, name in enumerate(names):
        most = max(line.evaluations for line in lines if line.estimator == name)
        axes.annotate(
            f"{most:.2g} f",
            (1.0, row),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="center",
            fontsize=7,
            color=GREY,
        )
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * (high / low) ** 0.25)  # room for them
    _few_ticks(axes)
