"""A method is a name for (gate family, estimator, penalties): one row of Tables 2 and 3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from l0arm.estimators import Estimator
from l0arm.gates import GateFamily, Gates
from l0arm.gating import Gated
from l0arm.methods.shares import check_shares
from l0arm.methods.stage import TRAIN, Stage

Penalty = Callable[[Gated, Gates], Tensor]
AfterStep = Callable[[Gated, torch.optim.Optimizer], None]
Extras = Callable[[Gated], Mapping[str, nn.Module]]
Check = Callable[[Gated], None]


def leave(gated: Gated, optimizer: torch.optim.Optimizer) -> None:
    """Most methods do nothing after a step."""


def no_extras(gated: Gated) -> Mapping[str, nn.Module]:
    """Most methods train the weights and phi only."""
    return {}


def accept(gated: Gated) -> None:
    """Most methods suit any model that their penalties suit."""


@dataclass(frozen=True)
class Method:
    """What z is, how phi gets a gradient, and what being open costs.

    Some methods need more: ``stages`` of training, something done ``after_step`` (a clamp, a
    proximal step, a mask applied again), ``extras`` (modules with parameters or buffers of their
    own), a share of the training images ``held_out`` to choose something on. ``check`` refuses a
    model that the method's options do not fit, before it is trained.
    """

    name: str
    gate: GateFamily
    estimator: Estimator
    penalties: tuple[Penalty, ...] = ()
    stages: tuple[Stage, ...] = TRAIN
    after_step: AfterStep = leave
    extras: Extras = no_extras
    held_out: float = 0.0
    check: Check = accept

    def __post_init__(self) -> None:
        check_shares("the training images", held_out=self.held_out)
