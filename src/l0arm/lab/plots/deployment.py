"""Figures of deployment: accuracy against cost, and the forms of one network side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from l0arm.lab.plots.canvas import (
    GREY,
    PAGE_WIDTH,
    PALETTE,
    PANEL_WIDTH,
    label_axes,
    label_points,
    legend_below,
    looks,
    new_figure,
    require,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from l0arm.lab.runs.trained import SweepPoint
    from l0arm.lab.tables.bench_record import BenchRecord, FormRecord, TimedRecord

TALLEST = 2.0  # whiskers end at this multiple of the largest median: one slow round would
# otherwise flatten all bars


def cost_curve(points: Sequence[SweepPoint], *, title: str = "") -> Figure:
    """Accuracy against multiply-adds, one point for each threshold that a run was compacted at.

    Args:
        points: The networks of a sweep. Pareto points are joined and labelled with their
            thresholds, the others are grey.
        title: The title of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: There is no point.

    Example:
        >>> from l0arm.lab.runs.trained import SweepPoint
        >>> size = dict(widths=(5, 20), parameters=900)
        >>> small = SweepPoint(threshold=0.7, macs=100, accuracy=95.0, pareto=True, **size)
        >>> large = SweepPoint(threshold=0.2, macs=300, accuracy=97.0, pareto=True, **size)
        >>> [text.get_text() for text in cost_curve([large, small]).axes[0].texts]
        ['0.2', '0.7']
    """
    require(points, "no threshold was tried", "give at least one")
    figure = new_figure(height=3.2, width=PANEL_WIDTH)
    axes = figure.subplots()
    behind = [p for p in points if not p.pareto]
    best = sorted((p for p in points if p.pareto), key=lambda p: p.macs)
    if behind:
        x, y = [p.macs for p in behind], [p.accuracy for p in behind]
        axes.plot(x, y, "o", color=GREY, markersize=4, label="another is as good and cheaper")
    x, y = [p.macs for p in best], [p.accuracy for p in best]
    axes.plot(x, y, "o-", color=PALETTE[0], markersize=5, label="Pareto points, with their τ")
    label_axes(axes, "multiply-adds for one input", "test accuracy (%)", title)
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    legend_below(figure, [axes])
    label_points(axes, [(p.macs, p.accuracy, f"{p.threshold:g}") for p in reversed(best)])
    return figure


def deployed_forms(measured: BenchRecord) -> Figure:
    """Latency, bytes and parameters of the forms of one network (dense, compact, ONNX, ...).

    There is a panel for each batch size and number of threads, then one for bytes and one for
    parameters. Bars are medians. Whiskers reach from the fastest to the slowest round.

    Args:
        measured: What ``l0arm bench RUN`` measured.

    Returns:
        The figure. The heights of the bars are written below the names of the forms.

    Raises:
        ValueError: No form was measured.

    Example:
        >>> from l0arm.lab.tables.bench_record import BenchRecord
        >>> forms = {"dense": {"bytes": 152_648, "parameters": 37_898}, "int8": {"bytes": 40_000}}
        >>> measured = BenchRecord(quick=False, forms=forms, latency=[])
        >>> [axes.get_title() for axes in deployed_forms(measured).axes]
        ['bytes', 'parameters']
    """
    require(measured.forms, "no form was measured", "run l0arm bench RUN")
    panels = [(place(timed), "ms", _times(timed)) for timed in measured.latency]
    panels += [(title, "", bars) for title, bars in _sizes(measured.forms).items() if bars]
    columns = min(max(2, len({timed.batch for timed in measured.latency})), 3)
    rows = -(-len(panels) // columns)
    figure = new_figure(height=1.9 * rows, width=PAGE_WIDTH)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    colours = {name: look.color for name, look in looks(measured.forms).items()}
    for axes, (title, unit, bars) in zip(grid, panels, strict=False):
        _draw(axes, bars, colours)
        label_axes(axes, "", unit, title)
        axes.grid(False, axis="x")
    for axes in grid[len(panels) :]:
        axes.remove()
    return figure


def place(timed: TimedRecord) -> str:
    """``batch 16, 2 threads``."""
    return f"batch {timed.batch}, {timed.threads} thread{'s' if timed.threads > 1 else ''}"


def short(number: float) -> str:
    """Three digits and a prefix.

    >>> short(152_648), short(990), short(37_898), short(0)
    ('153 k', '990', '37.9 k', '0')
    """
    for size, prefix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{prefix}"
    return f"{number:.3g}"


@dataclass(frozen=True)
class Bar:
    """One bar: its height, the text below it, and the ends of its whisker."""

    height: float
    text: str
    low: float | None = None
    high: float | None = None


def _times(timed: TimedRecord) -> dict[str, Bar]:
    return {name: Bar(t.median, f"{t.median:.3g}", t.low, t.high) for name, t in timed.ms.items()}


def _sizes(forms: Mapping[str, FormRecord]) -> dict[str, dict[str, Bar]]:
    known = {name: form.parameters for name, form in forms.items() if form.parameters is not None}
    return {
        "bytes": {name: Bar(form.bytes, short(form.bytes)) for name, form in forms.items()},
        "parameters": {name: Bar(count, short(count)) for name, count in known.items()},
    }


def _draw(axes: Axes, bars: Mapping[str, Bar], colours: Mapping[str, str]) -> None:
    heights = [bar.height for bar in bars.values()]
    axes.bar(range(len(bars)), heights, color=[colours[name] for name in bars], width=0.7)
    axes.set_xticks(range(len(bars)), [f"{name}\n{bar.text}" for name, bar in bars.items()])
    top = TALLEST * max(heights) or 1.0
    for at, bar in enumerate(bars.values()):
        if bar.low is not None and bar.high is not None:
            below, above = bar.height - bar.low, min(bar.high, top) - bar.height
            axes.errorbar([at], [bar.height], [[below], [above]], color="black", capsize=2, lw=1)
            if bar.high > top:
                text = axes.text(at, top, f"to {bar.high:.3g}", ha="center", va="bottom")
                text.set(fontsize=6, color=GREY)
    reach = max(min(bar.high or bar.height, top) for bar in bars.values())
    axes.set_ylim(0.0, 1.12 * reach or 1.0)
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
