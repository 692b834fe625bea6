"""What all figures share: an empty figure, colours, labelled axes, legends, and saving.

matplotlib is imported when a figure is drawn, not when this package is imported.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

from l0arm.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE_WIDTH = 7.0  # inches: the text width of a page, where 9 points are readable
PANEL_WIDTH = 5.0  # inches, for a single panel: still readable on a phone
# Okabe & Ito's palette, safe for every kind of colour blindness. Yellow is left out, because a thin
# yellow line on white is hard to see.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("", "o", "s", "^", "D", "v")  # the next one is used when the colours run out
GREY = "#666666"

FORMATS = ("png", "svg", "pdf")
# Metadata that would make two files of the same figure differ.
UNDATED = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def new_figure(height: float, width: float = PAGE_WIDTH) -> Figure:
    """An empty figure, in inches. It is not registered with pyplot, so nothing global keeps it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'l0arm[plots]'") from None
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def require(things: Iterable[object], what: str, way_out: str) -> None:
    """Refuse to draw an empty figure, and say what is missing."""
    if not any(True for _ in things):
        raise ValueError(f"there is nothing to draw: {what}; {way_out}")


@dataclass(frozen=True)
class Look:
    """The colour and marker of a run in every panel of a figure."""

    color: str
    marker: str

    def line(self, points: int) -> dict[str, Any]:
        """Arguments of ``Axes.plot`` for a curve of ``points`` points."""
        marker = self.marker or ("o" if points == 1 else "")  # one point makes no line
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
    """Set the labels, draw a faint grid, and remove the top and right spines."""
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.set_title(title, fontsize=10)
    axes.tick_params(labelsize=8)
    axes.grid(True, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def whole_epochs(axes: Axes) -> None:
    """Put ticks at whole epochs only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True))


def panel_title(number: int, title: str, of: int) -> str:
    """The title, with a letter if there are several panels: "(a) LeNet-5"."""
    return f"({ascii_lowercase[number]}) {title}" if 1 < of <= len(ascii_lowercase) else title


def legend(axes: Axes, **where: Any) -> None:
    """A legend inside the axes, nearly transparent so that it hides no curve."""
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8, framealpha=0.85, edgecolor="none", **where)


def legend_below(figure: Figure, panels: Iterable[Axes]) -> None:
    """One legend for several panels, below them, in as many columns as fit."""
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


PLACES = (  # of a label beside its point: offset in points, and which side of the text is there
    *(((4, -4), "left", "top"), ((4, 4), "left", "bottom")),
    *(((-4, 4), "right", "bottom"), ((-4, -4), "right", "top")),
    *(((4, -12), "left", "top"), ((-4, -12), "right", "top"), ((10, 0), "left", "center")),
)


def label_points(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Write a label beside each point. A label that would cover another one is left out.

    Call it when the axes are complete, because labels are placed in pixels.

    Args:
        axes: Where the points are drawn.
        points: x, y and the text of each. The first ones are placed first.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    inside = axes.get_window_extent()
    taken = [line.get_window_extent() for line in axes.texts]
    dots = [axes.transData.transform((x, y)) for x, y, _ in points]
    for x, y, text in points:
        for offset, ha, va in PLACES:
            label = axes.annotate(text, (x, y), offset, textcoords="offset points", fontsize=7)
            label.set(ha=ha, va=va)
            box = label.get_window_extent()
            clear = not any(box.overlaps(other) for other in taken)
            clear = clear and not any(box.contains(*dot) for dot in dots)
            if (
                clear
                and inside.containsx(box.x0)
                and inside.containsx(box.x1)
                and box.y0 > inside.y0
            ):
                taken.append(box)
                break
            label.remove()


def save(figure: Figure, path: Path) -> None:
    """Write a figure atomically. The same figure always gives the same bytes.

    Args:
        figure: A figure that one of the functions of this package returned.
        path: A file that ends in .png, .svg or .pdf. Missing folders are created.

    Raises:
        ValueError: The suffix is another one.

    Example:
        >>> import tempfile
        >>> from l0arm.lab.plots import gate_functions
        >>> path = Path(tempfile.mkdtemp()) / "fig1.png"
        >>> save(gate_functions(), path)
        >>> path.read_bytes()[1:4]
        b'PNG'
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ValueError(
            f"cannot draw {path.name}: a figure is written as .png, .svg or .pdf; "
            f"got {path.suffix or 'no suffix'}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, rendered(figure, kind))


def rendered(figure: Figure, kind: str) -> bytes:
    """The bytes of a figure in a format, without dates or random names."""
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "l0arm"}):
        figure.savefig(file, format=kind, metadata=UNDATED[kind])
    return file.getvalue()
