"""The figure of estimators: bias, variance and cost at each stage of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from l0arm.lab.plots.canvas import GREY, Look, label_axes, legend_below, looks, new_figure, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from l0arm.lab.tables.estimator_table import Line

SHIFTS = (0.22, 0.0, -0.22)  # vertical offsets of the stages within the row of an estimator


def estimator_comparison(lines: Sequence[Line], *, title: str = "") -> Figure:
    """Bias, variance and cost of estimators: a row for each estimator, a mark for each stage.

    All scales are logarithmic. Where the draws do not show a bias, a triangle stands at its upper
    limit and points to 0.

    Args:
        lines: What `l0arm.lab.tables.estimator_table.compare` measured.
        title: The title of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: There is no line.

    Example:
        >>> from l0arm.lab.tables.estimator_table import Line
        >>> errors = dict(variance_error=0.1, ratio_error=0.1, bias_error=0.2, evaluations_error=0)
        >>> bias = dict(unbiased=True, bias=0.0, bias_limit=0.4, bias_shown=False)
        >>> cost = dict(evaluations=2.0, seconds=0.003, seconds_spread=0.001)
        >>> arm = Line("arm", "start", variance=1.0, ratio=1.0, **errors, **bias, **cost)
        >>> [axes.get_xlabel() for axes in estimator_comparison([arm]).axes][1:]
        ["total variance / ARM's", 'ms (evaluations)']
    """
    require(lines, "no estimator was measured", "name one at least")
    names = list(dict.fromkeys(line.estimator for line in reversed(lines)))
    look = looks(line.stage for line in lines)
    figure = new_figure(height=1.6 + 0.27 * len(names))
    left, middle, right = panels = figure.subplots(1, 3, sharey=True)
    for shift, stage in zip(SHIFTS, look, strict=False):
        rows = [(names.index(x.estimator) + shift, x) for x in lines if x.stage == stage]
        _bias(left, rows, look[stage])
        ratios = [(at, x.ratio, x.ratio_error) for at, x in rows if x.ratio > 0]
        _dots(middle, ratios, look[stage], stage)
        times = [(at, 1000 * x.seconds, 1000 * x.seconds_spread) for at, x in rows]
        _dots(right, times, look[stage], stage)
    biased = {line.estimator for line in lines if not line.unbiased}
    left.set_yticks(range(len(names)))
    left.set_yticklabels([f"{name} (biased)" if name in biased else name for name in names])
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


def _bias(axes: Axes, rows: Sequence[tuple[float, Line]], look: Look) -> None:
    """Draw dots with errors where a bias is shown, and triangles where there is only a limit."""
    _dots(axes, [(at, x.bias, x.bias_error) for at, x in rows if x.bias_shown], look)
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
    axes: Axes, points: Sequence[tuple[float, float, float]], look: Look, label: str = ""
) -> None:
    """Draw points (row, value, error). No error bar reaches 0, which a log scale cannot show."""
    errors = [error for _, _, error in points]
    down = [min(error, 0.9 * value) for _, value, error in points]
    axes.errorbar(
        [value for _, value, _ in points],
        [at for at, _, _ in points],
        xerr=[down, errors],
        fmt="o",
        markersize=4,
        color=look.color,
        label=label,
    )


def _evaluations(axes: Axes, lines: Sequence[Line], names: Sequence[str]) -> None:
    """Write at the right end of each row how often f is evaluated."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator

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
    axes.set_xlim(low, high * (high / low) ** 0.25)  # room for the text
    # Ticks at 1, 3, 10 in plain numbers, because all costs may lie within one decade.
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
