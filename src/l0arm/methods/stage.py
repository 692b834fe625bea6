"""Stages: what a method does at which part of the training (pretrain, prune, retrain, ...)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real

from l0arm.gating import Gated

Validate = Callable[[], float]  # percent right, under z-bar, of held-out training images
Enter = Callable[[Gated, Validate | None], None]


def nothing(gated: Gated, validate: Validate | None) -> None:
    """What most stages do when they begin."""


def always(progress: float) -> float:
    """The penalties count in full."""
    return 1.0


def never(progress: float) -> float:
    """The penalties do not count."""
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


def warmed_up(share: float) -> Callable[[float], float]:
    """The penalties' weight grows over the first ``share`` of a stage; 0: it is 1 at once."""
    if not (isinstance(share, Real) and 0 <= share <= 1):
        raise ValueError(f"warm_up is a share of the stage, from 0 to 1; got {share!r}")
    return Ramp(0.0, share) if share else always


@dataclass(frozen=True)
class Stage:
    """A part of the training. It begins with ``enter`` and, but for the first, a new optimizer.

    ``share`` is its part of the epochs, relative to the other stages. ``lr`` and ``gate_lr``
    multiply the learning rates of the weights and of phi, and ``anneal`` both of them at a
    progress from 0 to 1 within the stage; ``penalty`` is the weight of the penalties at it. All
    that ``enter`` changes must be in the state of the gated network: a run that goes on after a
    kill does not enter again.
    """

    name: str
    share: float = 1.0
    enter: Enter = nothing
    lr: float = 1.0
    gate_lr: float = 1.0
    anneal: Callable[[float], float] = always
    penalty: Callable[[float], float] = always

    def __post_init__(self) -> None:
        if not (isinstance(self.share, Real) and 0 < self.share < math.inf):
            raise ValueError(
                f"the share of stage '{self.name}' must be a finite number > 0, got "
                f"{self.share!r}; leave out a stage that takes no time"
            )
        for name, rate in (("lr", self.lr), ("gate_lr", self.gate_lr)):
            if not (isinstance(rate, Real) and 0 <= rate < math.inf):
                raise ValueError(
                    f"stage '{self.name}' multiplies learning rates by {name}, a finite number >= 0"
                    f"; got {rate!r}"
                )


TRAIN = (Stage("train"),)


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
