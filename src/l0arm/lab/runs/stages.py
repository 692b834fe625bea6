"""The stages of a run: which one an epoch belongs to, and what the method asks for in it.

Nothing here knows any method. A stage is entered once, before the first step of its first epoch;
what it changes is in the state of the network, so that a run cut anywhere goes on from a checkpoint
without entering again.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from l0arm.gating import Gated
from l0arm.lab.data import Dataset, Preprocess
from l0arm.lab.recipes.recipe import Recipe
from l0arm.lab.runs.building import Trainee, build_method
from l0arm.lab.runs.errors import UserError
from l0arm.lab.runs.measuring import evaluate
from l0arm.lab.runs.session import Session
from l0arm.methods import Course

Held = tuple[Tensor, Tensor]  # images and labels


def without_held_out(recipe: Recipe, data: Dataset) -> tuple[Dataset, Held | None]:
    """The images to train on, and those that the method keeps aside to choose something on.

    They are training images: a method never sees the test images.
    """
    share = build_method(recipe.method, 1).held_out if recipe.gated else 0.0
    if not share:
        return data, None
    parts = data.split(max(1, round(share * len(data.train_labels))))
    rest = replace(data, train_images=parts.train_images, train_labels=parts.train_labels)
    return rest, (parts.test_images, parts.test_labels)


class Stages:
    """The method's stages and the recipe's schedule, laid over the epochs of a run."""

    def __init__(
        self, recipe: Recipe, session: Session, held: Held | None, preprocess: Preprocess
    ) -> None:
        self.recipe, self.session, self.held, self.preprocess = recipe, session, held, preprocess
        self.course = self._course(session.trainee)

    def _course(self, trainee: Trainee) -> Course | None:
        if not isinstance(trainee, Gated):
            return None
        epochs = self.recipe.training.epochs
        validate = self._validate if self.held is not None else None
        try:
            return Course(trainee, self.session.optimizer, epochs, validate=validate)
        except ValueError as error:
            name = self.recipe.method.name
            raise UserError(f"training.epochs: method '{name}': {error}") from None

    def begin(self) -> None:
        """Before an epoch: enter its stage if it is new, and set rates and penalties for it."""
        session = self.session
        for group in session.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * self.recipe.schedule.at(session.epoch)
        if self.course is not None:
            self.course.stage = session.stage
            self.course.begin(session.epoch)
            session.stage = self.course.stage

    @property
    def lr(self) -> float:
        """The weights' learning rate in the present epoch."""
        groups = self.session.optimizer.param_groups
        return float(groups[0]["lr"]) if self.course is None else self.course.rates[0]

    def _validate(self) -> float:
        assert self.held is not None
        return evaluate(self.session.trainee, *self.held, self.preprocess)[1]
