"""Figures of gates: the functions g(phi) (Fig. 1) and histograms of g(phi) in runs (Fig. 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from l0arm.gates import GateFunction, HardSigmoid, ScaledSigmoid
from l0arm.lab.plots.canvas import (
    GREY,
    PAGE_WIDTH,
    PALETTE,
    PANEL_WIDTH,
    label_axes,
    legend,
    legend_below,
    new_figure,
    panel_title,
    require,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from l0arm.lab.runs.records import EpochRecord

FUNCTIONS: dict[str, Callable[[float], GateFunction]] = {
    "scaled sigmoid, Eq. 11": ScaledSigmoid,
    "hard sigmoid, Eq. 12": HardSigmoid,
}
DASHES = ("-", "--", "-.", ":")
RIDGES = 14  # at most: more would hide each other
OVERLAP = 3.0  # height of the tallest bin, in distances between ridges
SCALES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)  # shares of the gates that the bar of a scale can show
ALL = "all gates"
COLUMNS = 3  # at most, of last_histograms


def gate_functions(scales: Sequence[float] = (1.0, 2.0, 7.0, 20.0), reach: float = 4.0) -> Figure:
    """Fig. 1: g(phi) of both gate functions for several scales k.

    Args:
        scales: The scales k. A larger k makes a steeper curve.
        reach: phi runs from ``-reach`` to ``reach``.

    Returns:
        The figure, with a panel for the scaled sigmoid and one for the hard sigmoid.

    Raises:
        ValueError: No scale was given.

    Example:
        >>> [axes.get_title() for axes in gate_functions(scales=[7.0]).axes]
        ['(a) scaled sigmoid, Eq. 11', '(b) hard sigmoid, Eq. 12']
    """
    require(scales, "no scale k was given", "name at least one, such as 7")
    figure = new_figure(height=2.9)
    panels = figure.subplots(1, len(FUNCTIONS), sharey=True)
    phi = torch.linspace(-reach, reach, 801, dtype=torch.float64)
    for number, (axes, (name, function)) in enumerate(zip(panels, FUNCTIONS.items(), strict=True)):
        for n, k in enumerate(scales):
            axes.plot(
                phi.numpy(),
                function(k)(phi).numpy(),
                color=PALETTE[n % len(PALETTE)],
                linestyle=DASHES[n % len(DASHES)],
                label=f"k = {k:g}",
            )
        label_axes(axes, "φ", "g(φ)" if number == 0 else "", panel_title(number, name, len(panels)))
        axes.set_xlim(-reach, reach)
        legend(axes, loc="upper left")
    return figure


def gate_histograms(
    epochs: Sequence[EpochRecord], *, by_group: bool = False, per_row: int = 4, title: str = ""
) -> Figure:
    """Fig. 2: histograms of g(phi) over the epochs of a run, as ridges with the last in front.

    Args:
        epochs: The records of a run. At most 14 epochs are drawn, evenly spaced.
        by_group: Draw a panel for each group instead of one for all gates.
        per_row: Panels in a row.
        title: The title of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: No epoch has gates.

    Example:
        >>> from l0arm.lab.runs.records import EpochRecord, GroupRecord
        >>> numbers = dict(lr=0.1, train_loss=1.0, penalty=0.0, test_loss=1.0, seconds=1.0)
        >>> accuracy = dict(train_accuracy=90.0, test_accuracy=92.0)
        >>> conv1 = GroupRecord("conv1", units=20, open=12, histogram=(8, 0, 0, 12))
        >>> epoch = EpochRecord(1, 10, groups=(conv1,), **numbers, **accuracy)
        >>> gate_histograms([epoch], by_group=True).axes[0].get_title()
        'conv1 (20 gates)'
    """
    gated = [epoch for epoch in epochs if epoch.groups]
    require(gated, "no epoch has gates", "choose a run that has finished an epoch and is not dense")
    names = [group.name for group in gated[0].groups] if by_group else [ALL]
    columns = min(per_row, len(names))
    rows = -(-len(names) // columns)
    figure = new_figure(height=3.0 * rows, width=PAGE_WIDTH if columns > 2 else PANEL_WIDTH)
    panels = figure.subplots(rows, columns, squeeze=False)
    for number, axes in enumerate(panels.flat):
        if number >= len(names):
            axes.remove()
            continue
        _ridges(axes, evenly_spaced(gated, RIDGES), names[number])
        units = sum(shares_of(gated[-1], names[number])[1])
        heading = f"{names[number]} ({units:,} gates)"
        label_axes(axes, "g(φ)", "", panel_title(number, heading, len(names)))
        axes.grid(visible=False)
        if number % columns == 0:
            axes.set_ylabel("epoch", fontsize=9)
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def last_histograms(runs: Mapping[str, EpochRecord], *, title: str = "") -> Figure:
    """Histograms of g(phi) of several runs side by side, after their last epochs.

    Args:
        runs: The last epoch of each run by label.
        title: The title of the figure.

    Returns:
        The figure, with a panel for each run.

    Raises:
        ValueError: There is no run.

    Example:
        >>> from l0arm.lab.runs.records import EpochRecord, GroupRecord
        >>> numbers = dict(lr=0.1, train_loss=1.0, penalty=0.0, test_loss=1.0, seconds=1.0)
        >>> accuracy = dict(train_accuracy=90.0, test_accuracy=92.0)
        >>> conv1 = GroupRecord("conv1", units=20, open=12, histogram=(8, 0, 0, 12))
        >>> epoch = EpochRecord(1, 10, groups=(conv1,), **numbers, **accuracy)
        >>> [axes.get_title() for axes in last_histograms({"seed 0": epoch}).axes]
        ['seed 0\\n20 gates']
    """
    require(runs, "no run has gates", "name runs of a method with gates")
    columns = min(COLUMNS, len(runs))
    rows = -(-len(runs) // columns)
    width = PAGE_WIDTH if columns > 2 else PANEL_WIDTH
    figure = new_figure(height=0.4 + 1.9 * rows, width=width)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes in panels.flat[len(runs) :]:
        axes.remove()
    for number, (axes, (label, epoch)) in enumerate(zip(panels.flat, runs.items(), strict=False)):
        share, counts = shares_of(epoch, ALL)
        edges = np.linspace(0.0, 1.0, len(share) + 1)
        axes.stairs(100 * np.array(share), edges, fill=True, color=PALETTE[0])
        axes.axvline(0.5, color=GREY, linewidth=0.8, linestyle="--", label="τ = 0.5 (Eq. 14)")
        left = "% of gates" if number % columns == 0 else ""
        label_axes(axes, "g(φ)" if number + columns >= len(runs) else "", left)
        axes.set_title(f"{label}\n{sum(counts):,} gates", fontsize=8)
        axes.tick_params(labelbottom=True)
        axes.set_xlim(0.0, 1.0)
    legend_below(figure, panels.flat[: len(runs)])
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def evenly_spaced(epochs: Sequence[EpochRecord], most: int) -> list[EpochRecord]:
    """At most ``most`` epochs, evenly spaced, including the first and the last."""
    if len(epochs) <= most:
        return list(epochs)
    return [epochs[round(n * (len(epochs) - 1) / (most - 1))] for n in range(most)]


def shares_of(epoch: EpochRecord, name: str) -> tuple[list[float], list[int]]:
    """Share and number of the gates in each bin, of one group or (name ALL) of all groups."""
    parts = [g.histogram for g in epoch.groups if name in (ALL, g.name)]
    counts = [sum(bins) for bins in zip(*parts, strict=True)]
    return [count / max(1, sum(counts)) for count in counts], counts


def _ridges(axes: Axes, epochs: Sequence[EpochRecord], name: str) -> None:
    """Draw steps, not smoothed curves: the bins are what was recorded."""
    import matplotlib

    shares = [shares_of(epoch, name)[0] for epoch in epochs]
    height = OVERLAP / max(max(share) for share in shares)
    colors = matplotlib.colormaps["cividis"](np.linspace(0.0, 0.85, len(epochs)))
    edges = np.linspace(0.0, 1.0, len(shares[0]) + 1)
    last = len(epochs) - 1
    for n, share in enumerate(shares):
        base = float(last - n)  # later epochs are lower and in front
        axes.stairs(
            base + height * np.array(share),
            edges,
            baseline=base,
            fill=True,
            facecolor=colors[n],
            edgecolor="white",
            linewidth=0.7,
            zorder=n + 2,
        )
        axes.axhline(base, color=colors[n], linewidth=0.6, zorder=n + 2)
    axes.set_yticks(range(len(epochs)), [str(epoch.epoch) for epoch in reversed(epochs)])
    # The first ridge may reach its top anywhere, so the scale stands above it.
    top = last + height * max(shares[0]) + 0.3
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(-0.2, _scale(axes, height, top) + 0.2)
    axes.set_xticks([0.0, 0.5, 1.0])


def _scale(axes: Axes, height: float, foot: float) -> float:
    """A bar at the upper right that shows how high a share of the gates is. Returns its top."""
    share = next((share for share in SCALES if share * height <= 0.7 * OVERLAP), SCALES[-1])
    top = foot + share * height
    axes.plot([0.97, 0.97], [foot, top], color="black", linewidth=2, clip_on=False)
    where = (0.955, (foot + top) / 2)
    axes.annotate(f"{share:.0%} of the gates", where, ha="right", va="center", fontsize=8)
    return top
