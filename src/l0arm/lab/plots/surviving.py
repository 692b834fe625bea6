"""Figures of what survives: input pixels and first-layer filters, with their gates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from l0arm.lab.plots.canvas import PAGE_WIDTH, PANEL_WIDTH, new_figure, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLOSED = "#DDDDDD"
PER_ROW = 10


def surviving_inputs(
    pi: Sequence[float], shape: tuple[int, int] = (28, 28), tau: float = 0.5
) -> Figure:
    """The gates of the input pixels: g(phi) of each, and which pixels stay.

    Args:
        pi: g(phi) of every pixel, row by row.
        shape: Height and width of the image.
        tau: A pixel stays if g(phi) > tau (Eq. 14).

    Returns:
        The figure, with g(phi) on the left and the open pixels on the right.

    Raises:
        ValueError: The number of gates does not fit the shape.

    Example:
        >>> figure = surviving_inputs([0.9, 0.1, 0.8, 0.7], shape=(2, 2))
        >>> figure.axes[1].get_title()
        '3 of 4 inputs kept (dark)'
    """
    if len(pi) != math.prod(shape):
        raise ValueError(
            f"{len(pi)} gates do not make an image of {shape[0]} x {shape[1]}; give the shape of "
            "the inputs, or the group whose units are pixels"
        )
    image = np.asarray(pi, dtype=float).reshape(shape)
    figure = new_figure(height=2.6, width=PANEL_WIDTH)
    from matplotlib.colors import ListedColormap  # new_figure has checked that it is installed

    left, right = figure.subplots(1, 2)
    drawn = left.imshow(image, cmap="cividis", vmin=0.0, vmax=1.0, interpolation="nearest")
    bar = figure.colorbar(drawn, ax=left, shrink=0.85)
    bar.set_label("g(φ)", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    left.set_title("g(φ) of each input", fontsize=10)
    kept = image > tau
    two_colours = ListedColormap([CLOSED, "#0B3C5D"])
    right.imshow(kept, cmap=two_colours, vmin=0, vmax=1, interpolation="nearest")
    right.set_title(f"{int(kept.sum())} of {kept.size} inputs kept (dark)", fontsize=10)
    for axes in (left, right):
        axes.set_xticks([])
        axes.set_yticks([])
    return figure


def surviving_filters(
    weight: Any, pi: Sequence[float], *, tau: float = 0.5, most: int = 100, called: str = "filters"
) -> Figure:
    """The filters of the first layer as small pictures. Closed filters are empty.

    Args:
        weight: An array of units x channels x height x width, with one or three channels. Three
            channels are averaged. The rows of a fully connected first layer can be drawn too if
            they are reshaped to images.
        pi: g(phi) of the gate of each unit.
        tau: A filter stays if g(phi) > tau (Eq. 14).
        most: Draw at most this many filters.
        called: What the title calls them, such as "neurons".

    Returns:
        The figure. Its title says how many filters stay and the range of the colours.

    Raises:
        ValueError: The weights are not filters of images, or their number is not that of the gates.

    Example:
        >>> weight = np.ones((3, 1, 5, 5))
        >>> surviving_filters(weight, [0.9, 0.2, 0.8]).get_suptitle()
        '2 of 3 filters kept; blue < 0 < red, ±1'
    """
    filters = _filters(weight, pi)
    shown = min(len(filters), most)
    rows = -(-shown // PER_ROW)
    figure = new_figure(height=0.45 + rows * PAGE_WIDTH / PER_ROW * 1.12)
    panels = figure.subplots(rows, PER_ROW, squeeze=False)
    is_open = [p > tau for p in pi]
    limit = max(
        [float(np.abs(f).max()) for f, kept in zip(filters, is_open, strict=True) if kept],
        default=1.0,
    )
    for number, axes in enumerate(panels.flat):
        if number >= shown:
            axes.remove()
            continue
        _filter(axes, filters[number], is_open[number], limit)
        axes.set_title(str(number), fontsize=7, pad=2, color="black" if is_open[number] else "#999")
    first = f", the first {shown} shown" if shown < len(filters) else ""
    figure.suptitle(
        f"{sum(is_open)} of {len(filters)} {called} kept{first}; blue < 0 < red, ±{limit:.2g}",
        fontsize=10,
    )
    return figure


def _filters(weight: Any, pi: Sequence[float]) -> NDArray[np.float64]:
    """Validate the weights and average their channels."""
    values = np.asarray(weight, dtype=float)
    if values.ndim != 4 or values.shape[1] not in (1, 3):
        raise ValueError(
            f"filters are units x channels x height x width with 1 or 3 channels; got "
            f"{' x '.join(map(str, values.shape))}; only a layer that reads the image can be drawn"
        )
    require(values, "the layer has no filters", "choose another layer")
    if len(values) != len(pi):
        raise ValueError(f"{len(values)} filters have {len(pi)} gates; give g(phi) of their group")
    mean: NDArray[np.float64] = values.mean(axis=1)
    return mean


def _filter(axes: Axes, image: NDArray[np.float64], kept: bool, limit: float) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    if kept:
        axes.imshow(image, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        return
    axes.set_facecolor(CLOSED)
    axes.set_box_aspect(image.shape[0] / image.shape[1])
    axes.spines[:].set_visible(False)
