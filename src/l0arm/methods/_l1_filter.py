"""L1 filter pruning: train, remove units with small weights, retrain.

Li, Kadav, Durdanovic, Samet, Graf, "Pruning Filters for Efficient ConvNets", 2016.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from l0arm.contracts import Method, Stage, Validate
from l0arm.estimators import Deterministic
from l0arm.gates import Fixed
from l0arm.gating import Gated
from l0arm.gating.layout import named_tensors
from l0arm.methods.stages import check_shares
from l0arm.methods.weights import OnePerGroup, alive_units, checked_keep, keep_of_groups, largest
from l0arm.penalties.norms import per_unit
from l0arm.penalties.strength import Strength


def l1_filter(*, keep: Strength = 0.5, train: float = 0.5, retrain_lr: float = 1.0) -> Method:
    """Keep the units with the largest sum |w| of each group, pruned in one shot.

    Args:
        keep: The share of the units that are kept. One number, or one per group.
        train: The share of the epochs before the pruning. 0 for a network that is trained already.
        retrain_lr: The factor of the learning rate after it.

    Returns:
        The method, for ``sparsify(model, method=...)``.

    Raises:
        ValueError: An option is out of range.

    Example:
        >>> from l0arm.methods import l1_filter
        >>> [(stage.name, stage.share) for stage in l1_filter(keep=0.3, train=0.75).stages]
        [('train', 0.75), ('retrain', 0.25)]
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
                zip(keep_of_groups(self.keep, gated), gated.groups, strict=True)
            ):
                norms = [per_unit(tensors[p.tensor].abs(), p, group.units) for p in group.counts]
                score = sum(norms[1:], norms[0])
                gated.phi[gated.layout.span(number)] = largest(score, share).to(gated.phi.dtype)
            gated.phi.copy_(alive_units(gated))
