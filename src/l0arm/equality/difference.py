"""How far what two models return is apart."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from l0arm.equality.apart import apart, typical
from l0arm.equality.outputs import chosen, tensors_in

__all__ = ["chosen", "difference", "holds_numbers", "measured", "tensors_in"]


def difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference relative to max|y| of its tensor; infinite if shapes differ."""
    if list(one) != list(other):
        return math.inf
    return max((apart(one[name], y) for name, y in other.items()), default=0.0)


def holds_numbers(outputs: Mapping[str, Tensor]) -> bool:
    """Whether there is a finite number that could differ by little."""
    return any(bool(measured(y).any()) for y in outputs.values())


def measured(y: Tensor) -> Tensor:
    """Where an output measures: numbers of its own, and not all whole: those count or choose."""
    if not (y.is_floating_point() or y.is_complex()):
        return y.new_zeros(y.shape, dtype=torch.bool)
    own = typical(y)
    real = torch.view_as_real(y) if y.is_complex() else y
    values = real[own]
    return own if bool((values != values.round()).any()) else torch.zeros_like(own)
