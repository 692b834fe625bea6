"""The forms of one network side by side: a panel of bars for each batch, and for the sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from l0arm.lab.plots.canvas import GREY, PAGE_WIDTH, label_axes, looks, new_figure, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TALLEST = 2.0  # of the largest median: one disturbed round must not flatten all bars


class Spread(Protocol):
    """Milliseconds over the rounds."""

    @property
    def median(self) -> float: ...

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...


class Timed(Protocol):
    """All forms at one batch size."""

    @property
    def threads(self) -> int: ...

    @property
    def batch(self) -> int: ...

    @property
    def ms(self) -> Mapping[str, Spread]: ...


class Size(Protocol):
    """What a form takes on disk or in memory."""

    @property
    def bytes(self) -> int: ...

    @property
    def parameters(self) -> int | None: ...


class Forms(Protocol):
    """What ``l0arm bench RUN`` measured."""

    @property
    def quick(self) -> bool: ...

    @property
    def forms(self) -> Mapping[str, Size]: ...

    @property
    def latency(self) -> Sequence[Timed]: ...


@dataclass(frozen=True)
class Bar:
    """One bar: how high, how it is written, and how far the whisker reaches."""

    height: float
    text: str
    low: float | None = None
    high: float | None = None


def deployed_forms(measured: Forms) -> Figure:
    """A panel for each batch size and number of threads, then bytes and parameters.

    Bars are medians, whiskers the smallest and largest round; the heights stand below the names.
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


def place(timed: Timed) -> str:
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


def _times(timed: Timed) -> dict[str, Bar]:
    return {name: Bar(t.median, f"{t.median:.3g}", t.low, t.high) for name, t in timed.ms.items()}


def _sizes(forms: Mapping[str, Size]) -> dict[str, dict[str, Bar]]:
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
                told = axes.text(at, top, f"to {bar.high:.3g}", ha="center", va="bottom")
                told.set(fontsize=6, color=GREY)
    reach = max(min(bar.high or bar.height, top) for bar in bars.values())
    axes.set_ylim(0.0, 1.12 * reach or 1.0)
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
