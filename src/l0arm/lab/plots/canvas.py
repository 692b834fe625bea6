"""What all figures share: the one import of matplotlib, colours, labelled axes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE_WIDTH = 7.0  # inches: the text of a page, where 9 points are readable
PANEL_WIDTH = 5.0  # of a single panel: still readable on a phone
# Okabe & Ito's colours, told apart with every kind of colour blindness; yellow is left out, since
# a thin yellow line on white is hard to see.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("", "o", "s", "^", "D", "v")  # for runs beyond the colours
GREY = "#666666"


def new_figure(height: float, width: float = PAGE_WIDTH) -> Figure:
    """An empty figure in inches, not known to pyplot: nothing global remembers it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'l0arm[plots]'") from None
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


@dataclass(frozen=True)
class Look:
    """The colour and marker that a run has in every panel of a figure."""

    color: str
    marker: str

    def line(self, points: int) -> dict[str, Any]:
        """Arguments of ``Axes.plot`` for a curve of so many points; a single one needs a dot."""
        marker = self.marker or ("o" if points == 1 else "")
        every = max(1, points // 10)
        return {"color": self.color, "marker": marker, "markevery": every, "markersize": 4}


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """A look for each label, in order of first appearance.

    >>> looks(["L0-AR", "L0-ARM", "L0-AR"])["L0-ARM"].color
    '#D55E00'
    """
    distinct = dict.fromkeys(labels)
    return {
        label: Look(PALETTE[n % len(PALETTE)], MARKERS[min(n // len(PALETTE), len(MARKERS) - 1)])
        for n, label in enumerate(distinct)
    }


def label_axes(axes: Axes, x: str, y: str, title: str = "") -> None:
    """Labels, a faint grid, and no frame where nothing is measured."""
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.set_title(title, fontsize=10)
    axes.tick_params(labelsize=8)
    axes.grid(True, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def whole_epochs(axes: Axes) -> None:
    """No tick at epoch 2.5."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True))


def legend(axes: Axes, **where: Any) -> None:
    """A legend that hides nothing below it."""
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8, framealpha=0.85, edgecolor="none", **where)


def legend_below(figure: Figure, panels: Iterable[Axes]) -> None:
    """One legend for several panels, below them, where it covers no curve."""
    handles: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    for columns in range(min(3, len(handles)), 0, -1):
        made = figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=columns,
            fontsize=8,
            frameon=False,
        )
        if columns == 1 or made.get_window_extent().width <= figure.bbox.width:
            return
        made.remove()


def panel_title(number: int, title: str, of: int) -> str:
    """The title with a letter, as in "(a) LeNet-5", where there are panels to tell apart."""
    return f"({ascii_lowercase[number]}) {title}" if 1 < of <= len(ascii_lowercase) else title


def require(things: Iterable[object], what: str, way_out: str) -> None:
    """An empty figure is never drawn: say what is missing instead."""
    if not any(True for _ in things):
        raise ValueError(f"there is nothing to draw: {what}; {way_out}")
