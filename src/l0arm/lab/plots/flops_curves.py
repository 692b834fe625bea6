"""Curves of expected FLOPs, in training and inference, that Fig. 3 and Fig. 4 share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from l0arm.lab.plots.canvas import GREY, Look
from l0arm.lab.plots.protocols import Epoch, Runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNITS = ((1e9, "GFLOPs"), (1e6, "MFLOPs"), (1e3, "kFLOPs"), (1.0, "FLOPs"))


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


def by_epoch(epochs: Sequence[Epoch]) -> FlopsCurve:
    """One point for each epoch that has gates."""
    points = [(e.epoch, e.flops_training, e.flops_inference) for e in epochs if e.flops_dense]
    return _curve(points)


def by_step(epochs: Sequence[Epoch]) -> FlopsCurve:
    """The points that were recorded within the epochs."""
    return _curve([point for epoch in epochs for point in epoch.by_step])


def _curve(points: Iterable[tuple[int, float, float]]) -> FlopsCurve:
    at, training, inference = tuple(zip(*points, strict=True)) or ((), (), ())
    return FlopsCurve(at, training, inference)


def dense_flops(runs: Runs) -> float:
    """What one pass of the dense network costs, 0 where no run says."""
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
    """Training solid, inference dashed, the dense network dotted; returns the label of the axis."""
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
