"""Runs a method's stages in any training loop, by hooks on the optimizer's steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from l0arm.compaction.shrinking import BELOW, Shrinking
from l0arm.contracts import TRAIN, Stage, Validate
from l0arm.gating import Gated
from l0arm.methods.stages import Timetable

COURSE = "l0arm_course"  # the attribute of an optimizer that holds its course


class Course:
    """Runs a method's stages in your training loop: call ``begin(epoch)`` before each epoch.

    It enters the stages of the method (each but the first clears the optimizer's state) and sets
    the weight of the penalties. Hooks on ``optimizer.step()`` multiply the learning rates during
    the step and do what the method does after it. Schedulers, loss scaling and trainers need no
    change.

    A resumed run makes a new course and begins with its current epoch. The stage is entered only if
    this is the stage's first epoch and nothing of it has been done. For an epoch that was
    interrupted, pass a fraction (7.5). An optimizer has one course: a new one replaces the old.
    After ``shrink``, set ``course.gated`` to the smaller network.

    With ``shrink=True`` the course does that by itself at the start of an epoch, if gates have
    closed for good (``compaction/shrinking.py`` has the rule). Then compute every loss from
    ``course.gated``, and evaluate, save and compact ``course.whole``, which keeps its full size.
    The state dict of the optimizer keeps its full size too. Save ``course.state_dict()`` beside
    them. A network that a smaller one cannot replace (a budget, gates that are not 0 or 1, methods
    with extras or stages that change it) is trained as it is.

    Args:
        gated: The network.
        optimizer: Built from ``gated.parameter_groups(lr)``.
        epochs: The number of epochs of the whole training. None: unknown, for methods with one
            plain stage only.
        validate: Returns the accuracy in percent of the network in eval mode on held-out training
            images, for methods that choose something by it.
        shrink: Train without the units that are closed for good.
        shrink_below: Those whose gates are open with a smaller probability, and closed by the
            threshold.

    Raises:
        ValueError: There are more stages than epochs, ``epochs`` is needed and None,
            ``shrink_below`` is no probability, or one parameter group of the optimizer holds both
            phi and weights whose rates differ.

    Example:
        >>> import torch, l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 4, 2)), method="group-lasso", lam=1e-3)
        >>> optimizer = torch.optim.SGD(gated.parameter_groups(lr=0.1))
        >>> course = l0arm.Course(gated, optimizer, epochs=4)
        >>> for epoch in range(4):
        ...     course.begin(epoch)
        ...     loss = gated.loss(lambda: gated(torch.ones(1, 6)).square().sum())
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        ...     print(course.timetable.at(epoch).stage.name, gated.penalty_weight)
        pretrain 0.0
        shrink 1.0
        shrink 1.0
        finetune 0.0
    """

    def __init__(
        self,
        gated: Gated,
        optimizer: torch.optim.Optimizer,
        epochs: int | None,
        *,
        validate: Validate | None = None,
        shrink: bool = False,
        shrink_below: float = BELOW,
    ) -> None:
        method = gated.method
        stages = method.stages
        if epochs is None and stages != TRAIN:
            raise ValueError(
                f"method '{method.name}' has stages "
                f"({', '.join(stage.name for stage in stages)}), which are shares of the epochs; "
                "pass the number of epochs (max_epochs, num_train_epochs)"
            )
        self._gated, self.optimizer, self.validate = gated, optimizer, validate
        self.timetable = Timetable(stages, 1 if epochs is None else epochs)
        self.endless = epochs is None
        self.stage: int | None = None  # the last one entered; unknown before the first epoch
        self._factors: list[float] = []  # of the learning rate, one per parameter group
        self._rates: list[Any] = []  # the optimizer's own rates, while a step multiplies them
        _check_groups(gated, optimizer, stages)
        if not (isinstance(shrink_below, int | float) and 0.0 < shrink_below < 1.0):
            raise ValueError(
                f"shrink_below is a probability strictly between 0 and 1; got {shrink_below!r}"
            )
        self._replace_earlier()
        self._shrinking = Shrinking(gated, optimizer, below=shrink_below) if shrink else None
        self._hooks = (
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        )

    def begin(self, epoch: float) -> None:
        """Enter the epoch's stage if it is new, and set rates and penalties for the epoch.

        Args:
            epoch: Its number, from 0. A fraction for an epoch that was interrupted.

        Raises:
            ValueError: The epoch is out of range, or the optimizer does not train phi.
        """
        moment = self.timetable.at(0 if self.endless else math.floor(epoch))
        self._check_trained()
        self._restore()  # in case the last step failed
        if self.stage is None:
            entered = epoch > self.timetable.starts[moment.number]
            self.stage = moment.number if entered else moment.number - 1
        if self._shrinking is not None:
            self._shrinking.begin(decide=epoch == math.floor(epoch))
        while self.stage < moment.number:
            self._enter(self.stage + 1)
        self._factors = [moment.anneal * rate for rate in self._rates_of(moment.stage)]
        self.gated.penalty_weight = moment.penalty

    @property
    def gated(self) -> Gated:
        """The network that takes the steps. Set it after ``shrink``."""
        return self._gated if self._shrinking is None else self._shrinking.gated

    @gated.setter
    def gated(self, gated: Gated) -> None:
        if self._shrinking is not None:
            raise AttributeError(
                "this course has shrink=True and chooses its network itself; make another Course "
                "for another network"
            )
        self._gated = gated

    @property
    def whole(self) -> Gated:
        """The network at its full size, with all that was learned."""
        return self.gated if self._shrinking is None else self._shrinking.write_back()

    def state_dict(self) -> dict[str, Any]:
        """Which gates are still trained. Save the network and the optimizer beside it."""
        return {"kept": None if self._shrinking is None else self._shrinking.kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the gates of a saved course. Load network and optimizer before.

        Raises:
            ValueError: The state is not that of a course for this network, or it has gates that
                were removed and this course was made without ``shrink=True``.
        """
        gates = self._gated.layout.gates
        kept = state.get("kept", "missing")
        if not (kept is None or (isinstance(kept, Tensor) and kept.shape == (gates,))):
            raise ValueError(
                f"this is not the state of a course for a network of {gates} gates; load what "
                "course.state_dict() gave when the network was saved"
            )
        if self._shrinking is not None:
            self._shrinking.kept = kept
        elif kept is not None:
            raise ValueError(
                "the saved course had removed gates from training, and this one trains them all; "
                "make it with shrink=True, or do not load the course's state"
            )

    @property
    def rates(self) -> list[float]:
        """The learning rates of this epoch's steps, one per parameter group of the optimizer."""
        groups = zip(self.optimizer.param_groups, self._factors, strict=True)
        return [float(group["lr"]) * factor for group, factor in groups]

    def end(self) -> None:
        """Remove the hooks from the optimizer, which holds the whole network again."""
        for hook in self._hooks:
            hook.remove()
        self._restore()
        if self._shrinking is not None:
            self._gated, self._shrinking = self._shrinking.end(), None

    def _replace_earlier(self) -> None:
        """End an earlier course of the optimizer: two would both multiply its rates."""
        earlier = getattr(self.optimizer, COURSE, None)
        if earlier is not None:
            earlier.end()
        setattr(self.optimizer, COURSE, self)

    def _enter(self, number: int) -> None:
        enter = self.timetable.stages[number].enter
        if enter is not None:
            enter(self.gated, self.validate)
        if number:  # moving averages of gradients belong to the network before
            self.optimizer.state.clear()
        self.stage = number

    def _rates_of(self, stage: Stage) -> list[float]:
        """The stage's factor for each parameter group, which depends on what the group holds."""
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
        self._restore()  # in case the last step failed
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
    """The ids of the parameters that have the learning rate of the gates."""
    return {id(p) for p in (gated.phi, *gated.extras.parameters())}


def _members(optimizer: torch.optim.Optimizer) -> list[set[int]]:
    return [{id(p) for p in group["params"]} for group in optimizer.param_groups]


def _check_groups(
    gated: Gated, optimizer: torch.optim.Optimizer, stages: tuple[Stage, ...]
) -> None:
    """Refuse a parameter group of gates and weights if a stage has different rates for them."""
    own, differ = _own(gated), any(stage.lr != stage.gate_lr for stage in stages)
    if differ and any(own & members and members - own for members in _members(optimizer)):
        raise ValueError(
            "a group of the optimizer holds phi and weights, but the method's stages have a rate "
            "for each of them; build the optimizer from gated.parameter_groups(lr)"
        )
