"""Units removed at random: the baseline that every other choice of units has to beat."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from l0arm.contracts import Method, Stage, Validate
from l0arm.estimators import Deterministic
from l0arm.gates import Fixed
from l0arm.gating import Gated
from l0arm.methods.stages import check_shares
from l0arm.methods.weights import OnePerGroup, checked_keep, keep_of_groups, largest
from l0arm.penalties.strength import Strength


def random_units(*, keep: Strength = 0.5, train: float = 0.0) -> Method:
    """Keep units of each group at random, drawn from torch's global generator.

    Args:
        keep: The share of the units that are kept. One number, or one per group.
        train: The share of the epochs before units are removed. 0: a smaller network is trained
            from the start.

    Returns:
        The method, for ``sparsify(model, method=...)``.

    Raises:
        ValueError: An option is out of range.

    Example:
        >>> from l0arm.methods import random_units
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
    """Close units of each group. All choices are equally likely."""

    keep: Strength

    def __call__(self, gated: Gated, validate: Validate | None) -> None:
        with torch.no_grad():
            for number, share in enumerate(keep_of_groups(self.keep, gated)):
                span = gated.layout.span(number)
                order = torch.rand(gated.groups[number].units)
                gated.phi[span] = largest(order, share).to(gated.phi)
