"""What a figure needs to know of a run: plain values of its epochs, whoever recorded them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias


class GateGroup(Protocol):
    """The gates of one group after an epoch."""

    @property
    def name(self) -> str: ...

    @property
    def units(self) -> int: ...

    @property
    def open(self) -> int: ...

    @property
    def histogram(self) -> Sequence[int]:
        """Gates by g(phi), in bins of equal width over [0, 1]."""
        ...


class Epoch(Protocol):
    """What was recorded of one epoch; accuracies and rates in percent, FLOPs for one image."""

    @property
    def epoch(self) -> int: ...

    @property
    def test_accuracy(self) -> float: ...

    @property
    def seconds(self) -> float: ...

    @property
    def prune_rate(self) -> float: ...

    @property
    def prune_rate_realised(self) -> float: ...

    @property
    def architecture(self) -> str: ...

    @property
    def undecided(self) -> float:
        """Share of the gates that are neither nearly closed nor nearly open."""
        ...

    @property
    def flops_dense(self) -> float: ...

    @property
    def flops_inference(self) -> float: ...

    @property
    def flops_training(self) -> float: ...

    @property
    def groups(self) -> Sequence[GateGroup]: ...

    @property
    def by_step(self) -> Sequence[tuple[int, float, float]]:
        """Step, E[FLOPs] in training, E[FLOPs] in inference."""
        ...


Runs: TypeAlias = Mapping[str, Sequence[Epoch]]  # label of a curve -> the epochs of its run
Columns: TypeAlias = Mapping[str, Runs]  # title of a panel -> the runs drawn in it
