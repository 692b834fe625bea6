"""The stages of a training laid out over its epochs, and schedules within a stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

from l0arm.contracts import Schedule, Stage, constant


def never(progress: float) -> float:
    """The schedule that is 0 throughout."""
    return 0.0


def half_cosine(progress: float) -> float:
    """The schedule from 1 to 0 that is flat at both ends.

    >>> [round(half_cosine(progress), 3) for progress in (0.0, 0.5, 1.0)]
    [1.0, 0.5, 0.0]
    """
    return 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Ramp:
    """The schedule that grows from 0 to 1 between two points of a stage (KL warm-up).

    >>> [Ramp(0.25, 0.75)(progress) for progress in (0.1, 0.5, 0.9)]
    [0.0, 0.5, 1.0]
    """

    start: float
    end: float

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end <= 1:
            raise ValueError(f"a ramp needs 0 <= start < end <= 1; got {self.start} and {self.end}")

    def __call__(self, progress: float) -> float:
        return min(1.0, max(0.0, (progress - self.start) / (self.end - self.start)))


def warmed_up(share: float) -> Schedule:
    """The schedule that grows from 0 to 1 over the first ``share`` of a stage. 0: it is 1."""
    if not (isinstance(share, Real) and 0 <= share <= 1):
        raise ValueError(f"warm_up is a share of the stage, from 0 to 1; got {share!r}")
    return Ramp(0.0, share) if share else constant


def first_epochs(stages: Sequence[Stage], epochs: int) -> list[int]:
    """The epoch at which each stage begins. Every stage lasts at least one epoch.

    >>> first_epochs([Stage("train", 0.5), Stage("prune", 0.25), Stage("tune", 0.25)], 20)
    [0, 10, 15]
    """
    if len(stages) > epochs:
        names = ", ".join(stage.name for stage in stages)
        raise ValueError(
            f"{len(stages)} stages ({names}) need at least as many epochs; got {epochs}"
        )
    total, before, starts = sum(stage.share for stage in stages), 0.0, [0]
    for number, stage in enumerate(stages[:-1], start=1):
        before += stage.share
        earliest, latest = starts[-1] + 1, epochs - (len(stages) - number)
        starts.append(min(max(earliest, round(before / total * epochs)), latest))
    return starts


@dataclass(frozen=True)
class Moment:
    """The beginning of an epoch: the ``epoch``-th of the ``lasts`` epochs of a stage."""

    number: int  # of the stage
    stage: Stage
    epoch: int
    lasts: int

    @property
    def anneal(self) -> float:
        """The factor of both learning rates by the stage's schedule."""
        return self.stage.anneal(self.epoch / self.lasts)

    @property
    def penalty(self) -> float:
        """The weight of the penalties. A stage of one epoch has the full weight, without a ramp.

        >>> short = Stage("train", penalty=Ramp(0.0, 0.5))
        >>> [Timetable((short,), 4).at(epoch).penalty for epoch in range(4)]
        [0.0, 0.5, 1.0, 1.0]
        >>> Timetable((short,), 1).at(0).penalty
        1.0
        """
        return self.stage.penalty(self.epoch / self.lasts if self.lasts > 1 else 1.0)


@dataclass(frozen=True)
class Timetable:
    """Stages laid out over the epochs of a training."""

    stages: tuple[Stage, ...]
    epochs: int

    def __post_init__(self) -> None:
        first_epochs(self.stages, self.epochs)  # refuse more stages than epochs

    @property
    def starts(self) -> list[int]:
        """The epoch at which each stage begins."""
        return first_epochs(self.stages, self.epochs)

    def at(self, epoch: int) -> Moment:
        """The beginning of an epoch. 0 is the first."""
        if not 0 <= epoch < self.epochs:
            raise ValueError(
                f"epoch {epoch} is outside of the {self.epochs} epochs that the stages were laid "
                f"out over (0 to {self.epochs - 1}); pass the total number of epochs"
            )
        number = sum(epoch >= start for start in self.starts) - 1
        start, end = [*self.starts, self.epochs][number : number + 2]
        return Moment(number, self.stages[number], epoch - start, end - start)


def check_shares(**shares: float) -> None:
    """Refuse options that are not shares of the epochs in [0, 1).

    >>> check_shares(pretrain=0.1, finetune=0.0)
    """
    for name, share in shares.items():
        if not (isinstance(share, Real) and 0.0 <= share < 1.0):
            raise ValueError(f"{name} is a share of the epochs, from 0 up to 1; got {share!r}")


def check_parts(rest: str, **shares: float) -> None:
    """Refuse shares of the epochs that together leave none for ``rest``."""
    check_shares(**shares)
    if sum(shares.values()) >= 1.0:
        parts = " and ".join(f"{name}={share!r}" for name, share in shares.items())
        raise ValueError(f"{parts} leave no epochs {rest}; their sum must be below 1")
