"""Stages of a training laid over its epochs, and the schedules within a stage."""

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
    """From 1 to 0, flat at both ends.

    >>> [round(half_cosine(progress), 3) for progress in (0.0, 0.5, 1.0)]
    [1.0, 0.5, 0.0]
    """
    return 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Ramp:
    """The penalties' weight grows from 0 to 1 between two points of a stage (KL warm-up).

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
    """The penalties' weight grows over the first ``share`` of a stage; 0: it is 1 at once."""
    if not (isinstance(share, Real) and 0 <= share <= 1):
        raise ValueError(f"warm_up is a share of the stage, from 0 to 1; got {share!r}")
    return Ramp(0.0, share) if share else constant


def first_epochs(stages: Sequence[Stage], epochs: int) -> list[int]:
    """The epoch at which each stage begins, every stage at least one epoch long.

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
    """The beginning of an epoch within a stage, the ``epoch``-th of ``lasts``."""

    number: int  # of the stage
    stage: Stage
    epoch: int
    lasts: int

    @property
    def anneal(self) -> float:
        """What the stage multiplies learning rates by, besides its constant factors."""
        return self.stage.anneal(self.epoch / self.lasts)

    @property
    def penalty(self) -> float:
        """The weight of the penalties; a ramp has no room in one epoch, which then has all of it.

        >>> short = Stage("train", penalty=Ramp(0.0, 0.5))
        >>> [Timetable((short,), 4).at(epoch).penalty for epoch in range(4)]
        [0.0, 0.5, 1.0, 1.0]
        >>> Timetable((short,), 1).at(0).penalty
        1.0
        """
        return self.stage.penalty(self.epoch / self.lasts if self.lasts > 1 else 1.0)


@dataclass(frozen=True)
class Timetable:
    """Stages, laid over the epochs of a training."""

    stages: tuple[Stage, ...]
    epochs: int

    def __post_init__(self) -> None:
        first_epochs(self.stages, self.epochs)  # more stages than epochs is told now

    @property
    def starts(self) -> list[int]:
        """The epoch at which each stage begins."""
        return first_epochs(self.stages, self.epochs)

    def at(self, epoch: int) -> Moment:
        """The moment at which an epoch (0 is the first) begins."""
        if not 0 <= epoch < self.epochs:
            raise ValueError(
                f"epoch {epoch} is none of the {self.epochs} that the stages were laid over "
                f"(0 to {self.epochs - 1}); give the whole number of epochs"
            )
        number = sum(epoch >= start for start in self.starts) - 1
        start, end = [*self.starts, self.epochs][number : number + 2]
        return Moment(number, self.stages[number], epoch - start, end - start)


def check_shares(what: str = "the epochs", /, **shares: float) -> None:
    """Each is a share of ``what``, and not all of it.

    >>> check_shares(pretrain=0.1, finetune=0.0)
    """
    for name, share in shares.items():
        if not (isinstance(share, Real) and 0.0 <= share < 1.0):
            raise ValueError(f"{name} is a share of {what}, from 0 up to 1; got {share!r}")


def check_parts(rest: str, **shares: float) -> None:
    """The same, and together they leave something of the epochs for ``rest``."""
    check_shares(**shares)
    if sum(shares.values()) >= 1.0:
        parts = " and ".join(f"{name}={share!r}" for name, share in shares.items())
        raise ValueError(f"{parts} leave no epochs {rest}; their sum must be below 1")
