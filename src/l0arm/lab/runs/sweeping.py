"""One run compacted at several thresholds: what each small network is worth, and what it costs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from l0arm.costs import count_flops
from l0arm.gating import EmptyGroupWarning, Gated
from l0arm.lab.runs.measuring import evaluate
from l0arm.lab.runs.trained import Trained


@dataclass(frozen=True)
class SweepPoint:
    """The network that a threshold tau (Eq. 14) leaves."""

    threshold: float
    widths: tuple[int, ...]  # units left in each group
    parameters: int
    macs: int  # for one input
    accuracy: float
    pareto: bool = False


def sweep(trained: Trained, gated: Gated, thresholds: Sequence[float]) -> list[SweepPoint]:
    """A point for each threshold; the gates' own threshold is as before afterwards."""
    before = gated.threshold
    try:
        with warnings.catch_warnings():  # the widths tell of groups that are closed whole
            warnings.simplefilter("ignore", EmptyGroupWarning)
            return with_pareto([_point(trained, gated, tau) for tau in thresholds])
    finally:
        gated.threshold = before


def _point(trained: Trained, gated: Gated, tau: float) -> SweepPoint:
    gated.threshold = tau
    small = trained.compact()
    test = (trained.data.test_images, trained.data.test_labels, trained.preprocess)
    is_open = gated.per_group(gated.deterministic() != 0)
    return SweepPoint(
        threshold=tau,
        widths=tuple(int(part.sum()) for part in is_open.values()),
        parameters=parameter_count(small),
        macs=count_flops(small, trained.preprocess(trained.data.test_images[:1])) // 2,
        accuracy=evaluate(small, *test)[1],
    )


def parameter_count(model: nn.Module) -> int:
    """All parameters, biases too."""
    return sum(p.numel() for p in model.parameters())


def with_pareto(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """Mark the points for which no other is as good in accuracy and MACs, and better in one.

    >>> cheap = SweepPoint(0.9, (1,), 10, 10, 90.0)
    >>> good = replace(cheap, macs=20, accuracy=95.0)
    >>> [p.pareto for p in with_pareto([cheap, good, replace(good, accuracy=94.0)])]
    [True, True, False]
    """
    return [replace(p, pareto=not any(_beats(q, p) for q in points)) for p in points]


def _beats(one: SweepPoint, other: SweepPoint) -> bool:
    as_good = one.accuracy >= other.accuracy and one.macs <= other.macs
    return as_good and (one.accuracy > other.accuracy or one.macs < other.macs)
