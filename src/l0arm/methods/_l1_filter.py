"""L1 filter pruning: train, remove units with small weights, retrain (Li et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from l0arm.contracts import Method, Stage, Validate
from l0arm.estimators.deterministic import Deterministic
from l0arm.gates import Fixed
from l0arm.gating import Gated
from l0arm.gating.layout import named_tensors
from l0arm.methods.stages import check_shares
from l0arm.methods.weights import OnePerGroup, alive_units, checked_keep, largest, shares
from l0arm.penalties.norms import per_unit
from l0arm.penalties.strength import Strength


def l1_filter(*, keep: Strength = 0.5, train: float = 0.5, retrain_lr: float = 1.0) -> Method:
    """Keep the share ``keep`` of each group's units in one shot: those with the largest sum |w|.

    After the share ``train`` of the epochs; 0 for a network that is trained already.
    """
    checked_keep(keep)
    check_shares(train=train)
    before = (Stage("train", train),) if train else ()
    return Method(
        "l1-filter",
        Fixed(),
        Deterministic(),
        stages=(*before, Stage("retrain", 1 - train, enter=PruneUnits(keep), lr=retrain_lr)),
        check=OnePerGroup(keep),
    )


@dataclass(frozen=True)
class PruneUnits:
    """Close the units with the smallest ``sum_j |theta_j|`` over the weights they count."""

    keep: Strength

    def __call__(self, gated: Gated, validate: Validate | None) -> None:
        tensors = named_tensors(gated.model)
        with torch.no_grad():
            for number, (share, group) in enumerate(
                zip(shares(self.keep, gated), gated.groups, strict=True)
            ):
                norms = [per_unit(tensors[p.tensor].abs(), p, group.units) for p in group.counts]
                score = sum(norms[1:], norms[0])
                gated.phi[gated.layout.span(number)] = largest(score, share).to(gated.phi.dtype)
            gated.phi.copy_(alive_units(gated))
