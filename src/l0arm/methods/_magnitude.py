"""Magnitude pruning: train, remove the smallest weights, retrain, and repeat.

Han, Pool, Tran, Dally, "Learning both Weights and Connections for Efficient Neural Networks", 2015.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Extra, Method, Stage, Validate
from l0arm.estimators import Deterministic
from l0arm.gates import Fixed
from l0arm.gating import Gated
from l0arm.gating.layout import named_tensors
from l0arm.methods.stages import check_shares
from l0arm.methods.weights import (
    OnePerGroup,
    alive_units,
    checked_keep,
    counted_weights,
    keep_of_groups,
    key_of,
    largest,
)
from l0arm.penalties.strength import Strength


def magnitude(
    *, keep: Strength = 0.1, rounds: int = 3, train: float = 0.5, retrain_lr: float = 0.1
) -> Method:
    """Keep the largest weights of each layer, in several rounds of pruning and retraining.

    Round k of n keeps the share keep^(k/n). Units that are left without weights are closed.

    Args:
        keep: The share of the weights that are kept in the end. One number, or one per group.
        rounds: The number of rounds.
        train: The share of the epochs before the first round. 0 for a network that is trained
            already.
        retrain_lr: The factor of the learning rate in the rounds.

    Returns:
        The method, for ``sparsify(model, method=...)``.

    Raises:
        ValueError: An option is out of range.

    Example:
        >>> from l0arm.methods import magnitude
        >>> [stage.name for stage in magnitude(keep=0.1, rounds=2).stages]
        ['train', 'prune 1', 'prune 2']
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


class WeightMasks(Extra):
    """A mask of 0 and 1 for every weight that a group counts, saved with the gated network."""

    def __init__(self, gated: Gated) -> None:
        super().__init__()
        self.names = counted_weights(gated)
        for name in self.names:
            self.register_buffer(key_of(name), torch.ones_like(named_tensors(gated.model)[name]))

    def __getitem__(self, name: str) -> Tensor:
        return self.get_buffer(key_of(name))

    def enforce(self, gated: Gated, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Zero the masked weights and, given an optimizer, their moving averages."""
        tensors = named_tensors(gated.model)
        with torch.no_grad():
            for name in self.names:
                weight, mask = tensors[name], self[name]
                weight.mul_(mask)
                state = {} if optimizer is None else optimizer.state.get(weight, {})
                for value in state.values():
                    if isinstance(value, Tensor) and value.shape == mask.shape:
                        value.mul_(mask)


def masks(gated: Gated) -> Mapping[str, Extra]:
    """Masks that keep all weights."""
    return {"masks": WeightMasks(gated)}


@dataclass(frozen=True)
class Prune:
    """Keep the largest ``keep ** power`` of every layer's weights, and close units without any."""

    keep: Strength
    power: float

    def __call__(self, gated: Gated, validate: Validate | None) -> None:
        tensors, masks = named_tensors(gated.model), gated.extra(WeightMasks)
        for share, group in zip(keep_of_groups(self.keep, gated), gated.groups, strict=True):
            for piece in group.counts:
                weight = tensors[piece.tensor].detach()
                masks[piece.tensor].copy_(largest(weight.abs(), share**self.power))
        masks.enforce(gated)
        with torch.no_grad():
            gated.phi.copy_(alive_units(gated))


def mask_again(gated: Gated, optimizer: torch.optim.Optimizer) -> None:
    """Mask the weights, and the optimizer's moving averages, after every step."""
    gated.extra(WeightMasks).enforce(gated, optimizer)
