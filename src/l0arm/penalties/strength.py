"""The strength lambda of a penalty: one number, or one per group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TypeGuard

from torch import Tensor

from l0arm.gating import Gated, Group

Strength = float | Sequence[float] | Mapping[str, float]


def checked(lam: Strength, name: str = "lam") -> Strength:
    """Return ``lam``, after a check that every number in it is finite and not negative."""
    values = (
        lam.values() if isinstance(lam, Mapping) else lam if isinstance(lam, Sequence) else [lam]
    )
    for value in values:
        if not _is_strength(value):
            raise ValueError(
                f"{name} must be a finite number >= 0, or one per group; got {value!r} "
                f"({type(value).__name__})" + (f" in {lam!r}" if lam is not value else "")
            )
    return lam


def single(lam: object, method: str) -> float:
    """``lam`` as one number, for a method that penalises weights which belong to no group."""
    if isinstance(lam, Mapping | list | tuple):
        raise ValueError(
            f"{method} takes one strength for all layers; got {lam!r}; give one number, or use a "
            "method that takes one per group, e.g. 'l0-disarm'"
        )
    if not _is_strength(lam):
        raise ValueError(f"lam must be a finite number >= 0; got {lam!r} ({type(lam).__name__})")
    return float(lam)


def _is_strength(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and math.isfinite(value) and float(value) >= 0


def per_group(lam: Strength, groups: Sequence[Group], what: str = "lam") -> list[float]:
    """The strength of each group, in order; ``what`` is the option's name in messages.

    >>> from l0arm.models import MLP
    >>> per_group({"fc1": 0.1, "fc2": 0.3, "fc3": 0.4}, MLP().groups())
    [0.1, 0.3, 0.4]
    """
    if isinstance(lam, Mapping):
        names = [group.name for group in groups]
        if set(lam) != set(names):
            raise ValueError(
                f"{what} names the groups {sorted(lam)}, but the model has {names}; "
                "give one number for each of them"
            )
        return [float(lam[name]) for name in names]
    if isinstance(lam, Sequence):
        if len(lam) != len(groups):
            raise ValueError(
                f"{what} has {len(lam)} entries, but there are {len(groups)} groups "
                f"({', '.join(g.name for g in groups)}); give one number for each of them"
            )
        return [float(value) for value in lam]
    return [float(lam)] * len(groups)


def per_gate(lam: Strength, gated: Gated) -> Tensor | float:
    """The strength of every gate; one number if it is the same for all."""
    if isinstance(lam, Real):
        return float(lam)
    return gated.sizes.new_tensor(per_group(lam, gated.groups))[gated.group_of]
