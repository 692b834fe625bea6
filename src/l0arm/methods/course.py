"""A method's stages in a training loop of anybody's: begin each epoch, the optimizer does the rest.

What a method wants at a step (factors for the learning rates, something done with the weights) is
hung on ``optimizer.step()``, so that schedulers, loss scaling and trainers stay as they are.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from l0arm.contracts import TRAIN, Stage, Validate
from l0arm.gating import Gated
from l0arm.methods.stages import Timetable

COURSE = "l0arm_course"  # the attribute of an optimizer by which its course is found


class Course:
    """Call ``begin(epoch)`` before each epoch, from 0; nothing else in the loop changes.

    It enters the method's stages (each but the first with the optimizer's averages forgotten),
    weighs the penalties and, within ``optimizer.step()``, multiplies the learning rates and does
    what the method does after a step. ``validate`` gives the percentage of held-out training images
    that the network in eval mode has right, for methods that choose something on them.

    A run that goes on makes a new course and begins with the epoch it is at. That epoch's stage is
    entered if it is the stage's first and nothing of it is done: of an epoch that was cut, give a
    fraction (7.5). An optimizer has one course: a new one takes the place of the old. After
    ``shrink``, set ``course.gated`` to the smaller network.
    """

    def __init__(
        self,
        gated: Gated,
        optimizer: torch.optim.Optimizer,
        epochs: int | None,
        *,
        validate: Validate | None = None,
    ) -> None:
        method = gated.method
        stages = method.stages
        if epochs is None and stages != TRAIN:
            raise ValueError(
                f"method '{method.name}' has stages "
                f"({', '.join(stage.name for stage in stages)}), which are shares of the epochs; "
                "tell how many there will be (max_epochs, num_train_epochs)"
            )
        self.gated, self.optimizer, self.validate = gated, optimizer, validate
        self.timetable = Timetable(stages, 1 if epochs is None else epochs)
        self.endless = epochs is None
        self.stage: int | None = None  # the last one entered; unknown before the first epoch
        self._factors: list[float] = []  # for the learning rate of each group of the optimizer
        self._rates: list[Any] = []  # of the optimizer, while a step multiplies them
        _check_groups(gated, optimizer, stages)
        self._take_over()
        self._hooks = (
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        )

    def begin(self, epoch: float) -> None:
        """Before an epoch: enter its stage if it is new, and weigh rates and penalties for it."""
        moment = self.timetable.at(0 if self.endless else math.floor(epoch))
        self._check_trained()
        self._restore()  # a step that failed has not
        if self.stage is None:
            entered = epoch > self.timetable.starts[moment.number]
            self.stage = moment.number if entered else moment.number - 1
        while self.stage < moment.number:
            self._enter(self.stage + 1)
        self._factors = [moment.anneal * rate for rate in self._rates_of(moment.stage)]
        self.gated.penalty_weight = moment.penalty

    @property
    def rates(self) -> list[float]:
        """The learning rates of the present epoch's steps, one for each group of the optimizer."""
        groups = zip(self.optimizer.param_groups, self._factors, strict=True)
        return [float(group["lr"]) * factor for group, factor in groups]

    def end(self) -> None:
        """Take the hooks off the optimizer."""
        for hook in self._hooks:
            hook.remove()
        self._restore()

    def _take_over(self) -> None:
        """Two courses on one optimizer would both multiply its rates."""
        earlier = getattr(self.optimizer, COURSE, None)
        if earlier is not None:
            earlier.end()
        setattr(self.optimizer, COURSE, self)

    def _enter(self, number: int) -> None:
        enter = self.timetable.stages[number].enter
        if enter is not None:
            enter(self.gated, self.validate)
        if number:  # averages of gradients belong to the network before it
            self.optimizer.state.clear()
        self.stage = number

    def _rates_of(self, stage: Stage) -> list[float]:
        """The stage's factor for each group of the optimizer, told by what is in it."""
        own = _own(self.gated)
        return [
            stage.gate_lr if own & members else stage.lr for members in _members(self.optimizer)
        ]

    def _check_trained(self) -> None:
        if not any(id(self.gated.phi) in members for members in _members(self.optimizer)):
            raise ValueError(
                "the optimizer does not train phi of this course's network; build it from "
                "gated.parameter_groups(lr), and after shrink set course.gated to what it returned"
            )

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._restore()  # a step that failed has not
        self._rates = [group["lr"] for group in optimizer.param_groups]
        for group, factor in zip(optimizer.param_groups, self._factors, strict=False):
            group["lr"] = group["lr"] * factor

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        after_step = self.gated.method.after_step
        if after_step is not None:
            after_step(self.gated, optimizer)
        self._restore()

    def _restore(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=False):
            group["lr"] = rate
        self._rates = []


def _own(gated: Gated) -> set[int]:
    """What has the gates' learning rate."""
    return {id(p) for p in (gated.phi, *gated.extras.parameters())}


def _members(optimizer: torch.optim.Optimizer) -> list[set[int]]:
    return [{id(p) for p in group["params"]} for group in optimizer.param_groups]


def _check_groups(
    gated: Gated, optimizer: torch.optim.Optimizer, stages: tuple[Stage, ...]
) -> None:
    """Refuse weights that would stop learning with the gates."""
    own, differ = _own(gated), any(stage.lr != stage.gate_lr for stage in stages)
    if differ and any(own & members and members - own for members in _members(optimizer)):
        raise ValueError(
            "a group of the optimizer holds phi and weights, but the method's stages have a rate "
            "for each of them; build the optimizer from gated.parameter_groups(lr)"
        )
