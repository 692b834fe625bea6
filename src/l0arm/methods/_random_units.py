"""Units removed at random: the baseline that every other choice of units has to beat."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from l0arm.contracts import Check, Enter, Method, Stage, Validate
from l0arm.estimators import Deterministic
from l0arm.gates import Fixed
from l0arm.gating import Gated
from l0arm.methods.stages import check_shares
from l0arm.methods.weights import OnePerGroup, checked_keep, keep_of_groups, largest
from l0arm.penalties.strength import Strength

Units = Sequence[Sequence[int]]


def random_units(
    *,
    keep: Strength = 0.5,
    train: float = 0.0,
    units: Units | None = None,
) -> Method:
    """Keep units of each group at random, drawn from torch's global generator.

    Args:
        keep: The share of the units that are kept. One number, or one per group.
        train: The share of the epochs before units are removed. 0: a smaller network is trained
            from the start.
        units: The numbers of the units to keep, one list per group, instead of a draw. With those
            that another run kept, it says what they are worth if they are trained from the start.

    Returns:
        The method, for ``sparsify(model, method=...)``.

    Raises:
        ValueError: An option is out of range, or a unit is not one of its group.

    Example:
        >>> from l0arm.methods import random_units
        >>> [stage.name for stage in random_units(train=0.5).stages]
        ['train', 'retrain']
        >>> random_units(units=[[0, 3], [1]]).stages[0].enter
        CloseOthers(units=[[0, 3], [1]])
    """
    checked_keep(keep)
    check_shares(train=train)
    enter: Enter = CloseAtRandom(keep)
    check: Check = OnePerGroup(keep)
    if units is not None:
        numbers = _numbers(units)
        enter, check = CloseOthers(numbers), AreUnits(numbers)
    close = Stage("retrain" if train else "train", 1 - train, enter=enter)
    stages = (Stage("train", train), close) if train else (close,)
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


@dataclass(frozen=True)
class CloseOthers:
    """Close all units but those that are given."""

    units: Units

    def __call__(self, gated: Gated, validate: Validate | None) -> None:
        kept = torch.zeros_like(gated.phi)
        for number, units in enumerate(self.units):
            kept[gated.layout.span(number)][list(units)] = 1.0
        gated.phi.data.copy_(kept)


@dataclass(frozen=True)
class AreUnits:
    """A method's ``check`` that refuses numbers of units that the model does not have."""

    units: Units

    def __call__(self, gated: Gated) -> None:
        if len(self.units) != len(gated.groups):
            names = ", ".join(f"'{group.name}'" for group in gated.groups)
            raise ValueError(f"units must have a list for each of {names}; got {len(self.units)}")
        for group, units in zip(gated.groups, self.units, strict=True):
            if not units or not {*units} <= {*range(group.units)}:
                raise ValueError(
                    f"units of group '{group.name}' must be numbers from 0 to {group.units - 1}, "
                    f"and at least one; got {list(units)}"
                )


def _numbers(units: Units) -> list[list[int]]:
    """The units of each group as plain numbers, from tensors and arrays too."""
    try:
        numbers = [list(group) for group in units]
        if any(isinstance(unit, bool) for group in numbers for unit in group):
            raise TypeError("a mask")
        return [[operator.index(unit) for unit in group] for group in numbers]
    except TypeError:
        raise ValueError(
            "units must be one list of numbers per group, such as [[0, 3], [1]]; of a mask, take "
            f"the positions: mask.nonzero().flatten(); got {units!r}"
        ) from None
