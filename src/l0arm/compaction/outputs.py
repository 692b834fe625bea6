"""How far what two models return is apart."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from l0arm.groups.outputs import chosen, tensors_in

__all__ = ["chosen", "difference", "holds_numbers", "measured", "tensors_in"]


def difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference relative to max|y| of its tensor; infinite if shapes differ."""
    if list(one) != list(other):
        return math.inf
    return max((_apart(one[name], y) for name, y in other.items()), default=0.0)


def holds_numbers(outputs: Mapping[str, Tensor]) -> bool:
    """Whether there is a finite number that could differ by little."""
    return any(bool(measured(y).any()) for y in outputs.values())


def measured(y: Tensor) -> Tensor:
    """Where an output measures: finite, and not all whole numbers, which are counts or choices."""
    if not (y.is_floating_point() or y.is_complex()):
        return y.new_zeros(y.shape, dtype=torch.bool)
    finite = y.isfinite()
    real = torch.view_as_real(y) if y.is_complex() else y
    values = real[finite]
    return finite if bool((values != values.round()).any()) else torch.zeros_like(finite)


def _apart(got: Tensor, y: Tensor) -> float:
    if got.shape != y.shape:
        return math.inf
    if not (y.is_floating_point() or y.is_complex()):
        return 0.0 if bool((got == y).all()) else math.inf
    finite = y.isfinite()
    if not bool((got.isfinite() == finite).all()):
        return math.inf
    if not bool(finite.any()):
        return 0.0
    apart = float((got - y)[finite].abs().max())
    scale = float(y[finite].abs().max())
    return apart / scale if scale else (math.inf if apart else 0.0)
