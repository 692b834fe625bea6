"""Units removed at random: the control that every choice of units has to beat."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from l0arm.contracts import Method, Stage, Validate
from l0arm.estimators.deterministic import Deterministic
from l0arm.gates import Fixed
from l0arm.gating import Gated
from l0arm.methods.stages import check_shares
from l0arm.methods.weights import OnePerGroup, checked_keep, largest, shares
from l0arm.penalties.strength import Strength


def random_units(*, keep: Strength = 0.5, train: float = 0.0) -> Method:
    """Keep the share ``keep`` of each group's units, drawn from torch's generator.

    At the start, so that a smaller network is trained; or after the share ``train`` of the epochs.

    >>> [stage.name for stage in random_units(train=0.5).stages]
    ['train', 'retrain']
    """
    checked_keep(keep)
    check_shares(train=train)
    close = Stage("retrain" if train else "train", 1 - train, enter=CloseAtRandom(keep))
    stages = (Stage("train", train), close) if train else (close,)
    check = OnePerGroup(keep)
    return Method("random", Fixed(), Deterministic(), stages=stages, check=check)


@dataclass(frozen=True)
class CloseAtRandom:
    """Close units of each group, all choices equally likely."""

    keep: Strength

    def __call__(self, gated: Gated, validate: Validate | None) -> None:
        with torch.no_grad():
            for number, share in enumerate(shares(self.keep, gated)):
                span = gated.layout.span(number)
                lots = torch.rand(gated.groups[number].units)
                gated.phi[span] = largest(lots, share).to(gated.phi)
