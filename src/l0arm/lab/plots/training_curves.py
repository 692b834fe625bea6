"""Figures of training: prune rate and FLOPs (Fig. 3, 4) and test accuracy (Fig. 5)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from l0arm.lab.plots.canvas import (
    GREY,
    PAGE_WIDTH,
    PANEL_WIDTH,
    Look,
    label_axes,
    legend_below,
    looks,
    new_figure,
    panel_title,
    require,
    whole_epochs,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from l0arm.lab.runs.records import EpochRecord

    Runs: TypeAlias = Mapping[str, Sequence[EpochRecord]]  # label of a curve -> epochs of its run
    Columns: TypeAlias = Mapping[str, Runs]  # title of a panel -> the runs drawn in it

UNITS = ((1e9, "GFLOPs"), (1e6, "MFLOPs"), (1e3, "kFLOPs"), (1.0, "FLOPs"))


def prune_rate_and_flops(columns: Columns) -> Figure:
    """Fig. 3: prune rate above and expected FLOPs below, by epoch.

    Args:
        columns: The runs of each column by label. The paper has one column for each choice of
            lambda: ``{"λ = 0.1/N": {"L0-HC": ..., "L0-ARM": ...}, "λ sep.": {...}}``. Dense runs
            are left out.

    Returns:
        The figure. Columns of the same network have the same scale.

    Raises:
        ValueError: No run has an epoch with gates.

    Example:
        >>> from l0arm.lab.runs.records import EpochRecord
        >>> numbers = dict(lr=0.1, train_loss=1.0, penalty=0.0, test_loss=1.0, seconds=1.0)
        >>> accuracy = dict(train_accuracy=90.0, test_accuracy=92.0)
        >>> flops = dict(flops_dense=4e6, flops_inference=2e6, flops_training=4e6)
        >>> epoch = EpochRecord(1, 10, prune_rate=50.0, **numbers, **accuracy, **flops)
        >>> rates, flops = prune_rate_and_flops({"LeNet-5": {"L0-ARM": [epoch]}}).axes
        >>> rates.get_ylabel(), flops.get_ylabel()
        ('prune rate (%)', 'expected MFLOPs per image')
    """
    columns = {title: _with_gates(runs) for title, runs in columns.items() if _with_gates(runs)}
    look = looks(label for runs in columns.values() for label in runs)
    require(look, "no run has an epoch with gates", "train an L0 method first")
    figure = new_figure(height=5.8, width=PAGE_WIDTH if len(columns) > 1 else PANEL_WIDTH)
    panels = figure.subplots(2, len(columns), squeeze=False, sharex="col")
    for number, (title, runs) in enumerate(columns.items()):
        rates, flops = panels[:, number]
        for label, epochs in runs.items():
            rate = [e.prune_rate for e in epochs]
            rates.plot([e.epoch for e in epochs], rate, label=label, **look[label].line(len(rate)))
        curves = {label: by_epoch(epochs) for label, epochs in runs.items()}
        unit = draw_flops(flops, curves, look, dense_flops(runs))
        label_axes(rates, "", "prune rate (%)", panel_title(number, title, len(columns)))
        below = panel_title(number + len(columns), title, len(columns))
        label_axes(flops, "epoch", unit, below if len(columns) > 1 else "")
        rates.set_ylim(0.0, 101.0)  # a curve at 99.5 % is not hidden by the edge
        whole_epochs(flops)
    if len({dense_flops(runs) for runs in columns.values()}) == 1:  # one network: compare columns
        top = max(axes.get_ylim()[1] for axes in panels[1])
        for axes in panels[1]:
            axes.set_ylim(0.0, top)
    legend_below(figure, panels[1])
    return figure


def flops_by_step(columns: Columns) -> Figure:
    """Fig. 4: expected FLOPs in training and inference, by iteration.

    Args:
        columns: The runs of each panel by label. The paper has one panel for each data set:
            ``{"CIFAR-10": {"L0-AR": ..., "L0-ARM": ...}, "CIFAR-100": {...}}``.

    Returns:
        The figure. Every panel has its own scale, since the networks may differ in size.

    Raises:
        ValueError: No run recorded FLOPs by step.

    Example:
        >>> from l0arm.lab.runs.records import EpochRecord
        >>> numbers = dict(lr=0.1, train_loss=1.0, penalty=0.0, test_loss=1.0, seconds=1.0)
        >>> accuracy = dict(train_accuracy=90.0, test_accuracy=92.0)
        >>> steps = ((1, 9e6, 9e6), (10, 8e6, 8e6))
        >>> epoch = EpochRecord(1, 10, by_step=steps, **numbers, **accuracy)
        >>> [axes.get_title() for axes in flops_by_step({"CIFAR-10": {"L0-AR": [epoch]}}).axes]
        ['CIFAR-10']
    """
    curves = {
        title: {label: by_step(epochs) for label, epochs in runs.items() if by_step(epochs).at}
        for title, runs in columns.items()
        if any(by_step(epochs).at for epochs in runs.values())
    }
    look = looks(label for runs in curves.values() for label in runs)
    require(look, "no run recorded FLOPs by step", "train an L0 method first")
    figure = new_figure(height=3.5, width=PAGE_WIDTH if len(curves) > 1 else PANEL_WIDTH)
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for number, (title, runs) in enumerate(curves.items()):
        axes = panels[number]
        unit = draw_flops(axes, runs, look, dense_flops(columns[title]))
        label_axes(axes, "iteration", unit, panel_title(number, title, len(curves)))
        axes.xaxis.set_major_formatter("{x:,.0f}")
    legend_below(figure, panels)
    return figure


def accuracy_by_epoch(runs: Runs, *, title: str = "", lowest: float | None = None) -> Figure:
    """Fig. 5: test accuracy of the deterministic networks, by epoch.

    Args:
        runs: The epochs of each run by label. Runs without an epoch are left out.
        title: The title of the figure.
        lowest: Where the axis begins, in percent. What lies below is not drawn, and the label of
            the axis says so. None shows everything.

    Returns:
        The figure.

    Raises:
        ValueError: No run has finished an epoch.

    Example:
        >>> from l0arm.lab.runs.records import EpochRecord
        >>> numbers = dict(lr=0.1, train_loss=1.0, penalty=0.0, test_loss=1.0, seconds=1.0)
        >>> epoch = EpochRecord(1, 10, train_accuracy=90.0, test_accuracy=92.0, **numbers)
        >>> accuracy_by_epoch({"dense": [epoch]}, title="LeNet-5").axes[0].get_ylabel()
        'test accuracy (%)'
    """
    runs = {label: epochs for label, epochs in runs.items() if epochs}
    require(runs, "no run has finished an epoch", "wait for the first one")
    figure = new_figure(height=3.2, width=PANEL_WIDTH)
    axes = figure.subplots()
    for label, look in looks(runs).items():
        epochs = runs[label]
        values = [e.test_accuracy for e in epochs]
        axes.plot([e.epoch for e in epochs], values, label=label, **look.line(len(values)))
    worst = min(e.test_accuracy for epochs in runs.values() for e in epochs)
    cut = f", from {lowest:g} on" if lowest is not None and worst < lowest else ""
    label_axes(axes, "epoch", f"test accuracy (%{cut})", title)
    if lowest is not None:
        axes.set_ylim(bottom=lowest)
    whole_epochs(axes)
    legend_below(figure, [axes])
    return figure


def lowest_after_start(runs: Runs) -> float:
    """A bound below all accuracies after the first tenth of the epochs, with a small margin."""
    later = [e.test_accuracy for epochs in runs.values() for e in epochs[len(epochs) // 10 :]]
    require(later, "no run has finished an epoch", "wait for the first one")
    margin = 0.1 * (max(later) - min(later))
    return round(min(later) - max(margin, 0.1), 1)


@dataclass(frozen=True)
class FlopsCurve:
    """Expected FLOPs of one run for one image, by epoch or by step."""

    at: tuple[int, ...]
    training: tuple[float, ...]
    inference: tuple[float, ...]

    @property
    def one_pass(self) -> bool:
        """Whether a training step makes no more forward passes than inference (AR, HC)."""
        pairs = zip(self.training, self.inference, strict=True)
        return all(math.isclose(one, other, rel_tol=1e-9) for one, other in pairs)


def by_epoch(epochs: Sequence[EpochRecord]) -> FlopsCurve:
    """One point for each epoch that has gates."""
    return _curve([(e.epoch, e.flops_training, e.flops_inference) for e in epochs if e.flops_dense])


def by_step(epochs: Sequence[EpochRecord]) -> FlopsCurve:
    """The points that were recorded within the epochs."""
    return _curve([point for epoch in epochs for point in epoch.by_step])


def _curve(points: Iterable[tuple[int, float, float]]) -> FlopsCurve:
    at, training, inference = tuple(zip(*points, strict=True)) or ((), (), ())
    return FlopsCurve(at, training, inference)


def _with_gates(runs: Runs) -> Runs:
    kept = {label: [e for e in epochs if e.flops_dense] for label, epochs in runs.items()}
    return {label: epochs for label, epochs in kept.items() if epochs}


def dense_flops(runs: Runs) -> float:
    """FLOPs of one pass of the dense network, or 0 if no run recorded them."""
    return max((e.flops_dense for epochs in runs.values() for e in epochs[:1]), default=0.0)


def unit_of(largest: float) -> tuple[float, str]:
    """The unit in which the largest value has one to three digits before the point.

    >>> unit_of(532_400)
    (1000.0, 'kFLOPs')
    """
    return next(((size, name) for size, name in UNITS if largest >= size), UNITS[-1])


def draw_flops(
    axes: Axes, curves: Mapping[str, FlopsCurve], look: Mapping[str, Look], dense: float
) -> str:
    """Draw training solid, inference dashed and the dense network dotted; return the y label."""
    values = [v for c in curves.values() for v in (*c.training, *c.inference)]
    size, unit = unit_of(max([dense, *values]))
    for label, curve in curves.items():
        style = look[label].line(len(curve.at))
        both = curve.one_pass
        name = f"{label}, training" + (" and inference" if both else "")
        axes.plot(curve.at, [v / size for v in curve.training], label=name, **style)
        if not both:
            inference = [v / size for v in curve.inference]
            axes.plot(curve.at, inference, label=f"{label}, inference", linestyle="--", **style)
    if dense:
        axes.axhline(
            dense / size, color=GREY, linestyle=":", linewidth=1.2, label="dense, one pass"
        )
    axes.set_ylim(bottom=0.0)
    return f"expected {unit} per image"
