"""Magnitude pruning: train, remove the smallest weights, retrain, again (Han et al. 2015)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from l0arm.contracts import Extra, Method, Stage, Validate
from l0arm.estimators.deterministic import Deterministic
from l0arm.gates import Fixed
from l0arm.gating import Gated
from l0arm.gating.layout import named_tensors
from l0arm.methods.stages import check_shares
from l0arm.methods.weights import (
    OnePerGroup,
    WeightMasks,
    alive_units,
    checked_keep,
    largest,
    shares,
)
from l0arm.penalties.strength import Strength


def magnitude(
    *, keep: Strength = 0.1, rounds: int = 3, train: float = 0.5, retrain_lr: float = 0.1
) -> Method:
    """Keep the share ``keep`` of each layer's weights (one number, or one per group).

    After ``train`` of the epochs the weights are cut in ``rounds``, down to keep^(1/rounds),
    keep^(2/rounds), ..., keep of them, and what is left is retrained after each. ``train`` is 0 for
    a network that is trained already.
    """
    checked_keep(keep)
    check_shares(train=train)
    if not (isinstance(rounds, int) and rounds >= 1):
        raise ValueError(f"rounds of pruning must be an integer >= 1; got {rounds!r}")
    cuts = [
        Stage(f"prune {n}", (1 - train) / rounds, enter=Prune(keep, n / rounds), lr=retrain_lr)
        for n in range(1, rounds + 1)
    ]
    before = (Stage("train", train),) if train else ()
    return Method(
        "magnitude",
        Fixed(),
        Deterministic(),
        stages=(*before, *cuts),
        after_step=mask_again,
        extras=masks,
        check=OnePerGroup(keep),
    )


@dataclass(frozen=True)
class Prune:
    """Keep the largest ``keep ** power`` of every layer's weights, and close units left without."""

    keep: Strength
    power: float

    def __call__(self, gated: Gated, validate: Validate | None) -> None:
        tensors, masks = named_tensors(gated.model), _masks(gated)
        for share, group in zip(shares(self.keep, gated), gated.groups, strict=True):
            for piece in group.counts:
                weight = tensors[piece.tensor].detach()
                masks[piece.tensor].copy_(largest(weight.abs(), share**self.power))
        masks.enforce(gated)
        with torch.no_grad():
            gated.phi.copy_(alive_units(gated))


def masks(gated: Gated) -> Mapping[str, Extra]:
    """All weights are kept at first."""
    return {"masks": WeightMasks(gated)}


def mask_again(gated: Gated, optimizer: torch.optim.Optimizer) -> None:
    """What was removed stays removed, in the weights and in the optimizer's averages."""
    _masks(gated).enforce(gated, optimizer)


def _masks(gated: Gated) -> WeightMasks:
    return gated.extra(WeightMasks)
