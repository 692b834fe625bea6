"""Which stage an epoch belongs to, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass

from l0arm.methods.stage import Stage, first_epochs


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

        >>> from l0arm.methods.stage import Ramp
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
