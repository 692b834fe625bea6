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
from l0arm.methods.stage import TRAIN, Stage, first_epochs

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
        self.stages: tuple[Stage, ...] = stages or TRAIN
        try:
            self.starts = first_epochs(self.stages, recipe.training.epochs)
        except ValueError as error:
            raise UserError(f"training.epochs: method '{recipe.method.name}': {error}") from None

    def begin(self) -> None:
        """Before an epoch: enter its stage if it is new, and set rates and penalties for it."""
        epoch = self.session.epoch
        number = sum(epoch >= start for start in self.starts) - 1
        while self.session.stage < number:
            self._enter(self.session.stage + 1)
        start, end = [*self.starts, self.recipe.training.epochs][number : number + 2]
        stage, progress = self.stages[number], (epoch - start) / (end - start)
        now = self.recipe.schedule.at(epoch) * stage.anneal(progress)
        rates = (stage.lr, stage.gate_lr)  # as Gated.parameter_groups orders them
        for group, factor in zip(self.session.optimizer.param_groups, rates, strict=False):
            group["lr"] = group["initial_lr"] * now * factor
        if self.gated is not None:
            self.gated.penalty_weight = stage.penalty(progress)

    def after_step(self) -> None:
        """What the method does with the weights and phi after the optimizer."""
        if self.gated is not None and isinstance(self.method, Method):
            self.method.after_step(self.gated, self.session.optimizer)

    def _enter(self, number: int) -> None:
        if self.gated is not None:
            validate = self._validate if self.held is not None else None
            self.stages[number].enter(self.gated, validate)
        if number:  # averages of gradients belong to the network before it
            self.session.optimizer = build_optimizer(self.recipe, self.session.trainee)
        self.session.stage = number

    def _validate(self) -> float:
        assert self.held is not None
        return evaluate(self.session.trainee, *self.held, self.preprocess)[1]
