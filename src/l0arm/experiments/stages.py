"""The stages of a run: which one an epoch belongs to, and what the method asks for in it.

Nothing here knows any method. A stage is entered once, before the first step of its first epoch;
what it changes is in the state of the network, so that a run cut anywhere goes on from a checkpoint
without entering again.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from l0arm.data import Dataset, Preprocess
from l0arm.experiments.building import build_method, build_optimizer
from l0arm.experiments.errors import UserError
from l0arm.experiments.measuring import evaluate
from l0arm.experiments.recipe import Recipe
from l0arm.experiments.session import Session
from l0arm.groups import Gated
from l0arm.methods import Method
from l0arm.methods.stage import TRAIN
from l0arm.methods.timetable import Timetable

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


class Course:
    """The method's stages, laid over the epochs of a recipe."""

    def __init__(
        self, recipe: Recipe, session: Session, held: Held | None, preprocess: Preprocess
    ) -> None:
        self.recipe, self.session, self.held, self.preprocess = recipe, session, held, preprocess
        self.gated = session.trainee if isinstance(session.trainee, Gated) else None
        self.method = self.gated.method if self.gated is not None else None
        stages = self.method.stages if isinstance(self.method, Method) else ()
        try:
            self.timetable = Timetable(stages or TRAIN, recipe.training.epochs)
        except ValueError as error:
            raise UserError(f"training.epochs: method '{recipe.method.name}': {error}") from None

    def begin(self) -> None:
        """Before an epoch: enter its stage if it is new, and set rates and penalties for it."""
        epoch = self.session.epoch
        moment = self.timetable.at(epoch)
        while self.session.stage < moment.number:
            self._enter(self.session.stage + 1)
        now = self.recipe.schedule.at(epoch) * moment.anneal
        rates = (moment.stage.lr, moment.stage.gate_lr)  # as Gated.parameter_groups orders them
        for group, factor in zip(self.session.optimizer.param_groups, rates, strict=False):
            group["lr"] = group["initial_lr"] * now * factor
        if self.gated is not None:
            self.gated.penalty_weight = moment.penalty

    def after_step(self) -> None:
        """What the method does with the weights and phi after the optimizer."""
        if self.gated is not None and isinstance(self.method, Method):
            self.method.after_step(self.gated, self.session.optimizer)

    def _enter(self, number: int) -> None:
        if self.gated is not None:
            validate = self._validate if self.held is not None else None
            self.timetable.stages[number].enter(self.gated, validate)
        if number:  # averages of gradients belong to the network before it
            self.session.optimizer = build_optimizer(self.recipe, self.session.trainee)
        self.session.stage = number

    def _validate(self) -> float:
        assert self.held is not None
        return evaluate(self.session.trainee, *self.held, self.preprocess)[1]
