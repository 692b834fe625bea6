"""How far what two models return is apart."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from l0arm.groups.outputs import chosen, tensors_in

__all__ = ["chosen", "difference", "tensors_in"]


def difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference relative to max|y| of its tensor; infinite if shapes differ."""
    if list(one) != list(other):
        return math.inf
    return max((_apart(one[name], y) for name, y in other.items()), default=0.0)


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
