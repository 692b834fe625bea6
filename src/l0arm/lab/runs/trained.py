"""The network of a run after training: measured, compacted, deployed, swept over thresholds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from l0arm.compaction import inspect_saved, load
from l0arm.costs import count_flops
from l0arm.gating import EmptyGroupWarning, Gated
from l0arm.lab.data import Dataset, Preprocess
from l0arm.lab.errors import UserError
from l0arm.lab.runs.building import build_model, prepared, preprocess_of
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.measuring import evaluate
from l0arm.lab.runs.recorded import recorded_image, recorded_network
from l0arm.lab.runs.session import Session, restored_session
from l0arm.metrics import architecture, prune_rate

EXAMPLES = 8  # inputs of a deployment


@dataclass(frozen=True)
class Trained:
    """A run's network and the data it is measured on."""

    session: Session
    data: Dataset
    preprocess: Preprocess

    def gated(self) -> Gated:
        """The network with its gates."""
        if not isinstance(self.session.trainee, Gated):
            raise UserError("the run has no gates: there is nothing to compact")
        return self.session.trainee

    def compact(self) -> nn.Module:
        """The small network without gates, in eval mode."""
        return self.gated().compact().eval()

    def measured(self) -> dict[str, Any]:
        """The accuracy of the network and of its compacted form, and how far they differ."""
        trainee = self.session.trainee
        test = (self.data.test_images, self.data.test_labels, self.preprocess)
        facts: dict[str, Any] = {
            "epoch": self.session.epoch,
            "test_accuracy": evaluate(trainee, *test)[1],
        }
        if isinstance(trainee, Gated):
            small = self.compact()
            facts |= {
                "architecture": architecture(trainee),
                "prune_rate": prune_rate(trainee),
                "prune_rate_realised": prune_rate(trainee, "realised"),
                "compact_accuracy": evaluate(small, *test)[1],
                "largest_difference": self.largest_difference(trainee, small),
            }
        return facts

    def largest_difference(self, gated: Gated, small: nn.Module) -> float:
        """Between the outputs of the gated and the compacted network on 1,000 test images."""
        x = self.preprocess(self.data.test_images[:1000])
        gated.eval()
        with torch.no_grad():
            return float((gated(x) - small(x)).abs().max())


def trained_network(folder: RunFolder, data: Dataset) -> Trained:
    """Load the newest intact checkpoint of a run."""
    data = prepared(data, folder.recipe().data)
    return Trained(restored_session(folder, data), data, preprocess_of(data))


@dataclass(frozen=True)
class Deployment:
    """What is exported or benchmarked: the dense network, its compacted form, example inputs."""

    dense: nn.Module
    compact: nn.Module
    example: Tensor
    trained: Trained | None = None  # only of a run, whose accuracy can be measured

    def accuracy(self, call: Callable[[Tensor], Tensor]) -> float | None:
        """The test accuracy in percent, for 1,000 images at a time."""
        if self.trained is None:
            return None
        images, labels = self.trained.data.test_images, self.trained.data.test_labels
        right = 0
        with torch.no_grad():
            for start in range(0, len(images), 1000):
                logits = call(self.trained.preprocess(images[start : start + 1000]))
                right += int((logits.argmax(1) == labels[start : start + 1000]).sum())
        return 100.0 * right / len(images)


def deployment_of_run(folder: RunFolder, data: Dataset) -> Deployment:
    """The network in the newest checkpoint of a run."""
    trained = trained_network(folder, data)
    dense = build_model(folder.recipe().model, trained.data).eval()
    example = trained.preprocess(trained.data.test_images[:EXAMPLES])
    return Deployment(dense, trained.compact(), example, trained)


def deployment_of_saved(
    path: Path, factory: Callable[[], nn.Module] | None, size: Sequence[int] | None
) -> Deployment:
    """A saved network.

    Args:
        path: The folder of the saved network.
        factory: Makes the original network.
        size: The size of one input, without the batch dimension. Both can be None for networks
            that ``l0arm compact`` wrote, which contain a record of them.
    """
    saved = inspect_saved(path)
    size = size or recorded_image(saved, path)
    factory = factory or recorded_network(saved, path)
    torch.manual_seed(0)
    return Deployment(factory().eval(), load(path, factory), torch.rand(EXAMPLES, *size))


@dataclass(frozen=True)
class SweepPoint:
    """The compacted network at one threshold tau (Eq. 14)."""

    threshold: float
    widths: tuple[int, ...]  # units left in each group
    parameters: int
    macs: int  # for one input
    accuracy: float
    pareto: bool = False
    upto: float = 0.0  # the last threshold that leaves the same network


def sweep(trained: Trained, gated: Gated, thresholds: Sequence[float]) -> list[SweepPoint]:
    """Compact a run at each threshold. The threshold of the gates is restored afterwards.

    Thresholds in a row that leave the same network are one point.
    """
    before, points, last = gated.threshold, list[SweepPoint](), None
    try:
        with warnings.catch_warnings():  # the widths show which groups are empty
            warnings.simplefilter("ignore", EmptyGroupWarning)
            for tau in thresholds:
                gated.threshold = tau
                z = gated.deterministic()
                if last is not None and torch.equal(z, last):
                    points[-1] = replace(points[-1], upto=tau)
                else:
                    points.append(_point(trained, gated, tau))
                last = z
            return with_pareto(points)
    finally:
        gated.threshold = before


def _point(trained: Trained, gated: Gated, tau: float) -> SweepPoint:
    small = trained.compact()
    test = (trained.data.test_images, trained.data.test_labels, trained.preprocess)
    is_open = gated.per_group(gated.deterministic() != 0)
    return SweepPoint(
        threshold=tau,
        upto=tau,
        widths=tuple(int(part.sum()) for part in is_open.values()),
        parameters=parameter_count(small),
        macs=count_flops(small, trained.preprocess(trained.data.test_images[:1])) // 2,
        accuracy=evaluate(small, *test)[1],
    )


def parameter_count(model: nn.Module) -> int:
    """The number of all parameters, including biases."""
    return sum(p.numel() for p in model.parameters())


def with_pareto(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """Mark the points that no other point dominates in accuracy and MACs.

    >>> cheap = SweepPoint(0.9, (1,), 10, 10, 90.0)
    >>> good = replace(cheap, macs=20, accuracy=95.0)
    >>> [p.pareto for p in with_pareto([cheap, good, replace(good, accuracy=94.0)])]
    [True, True, False]
    """
    return [replace(p, pareto=not any(_dominates(q, p) for q in points)) for p in points]


def _dominates(one: SweepPoint, other: SweepPoint) -> bool:
    as_good = one.accuracy >= other.accuracy and one.macs <= other.macs
    return as_good and (one.accuracy > other.accuracy or one.macs < other.macs)
