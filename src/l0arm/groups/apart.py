"""How far two tensors that should be equal are apart."""

from __future__ import annotations

import math

from torch import Tensor

FILLER = 1e3  # times everything else: a number that masks put in the place of others


def apart(got: Tensor, y: Tensor) -> float:
    """The largest difference relative to max|y|; infinite if shapes differ, or what is not finite.

    Fillers (-1e9, or the lowest number of the type, where a choice is forbidden) are compared for
    themselves: beside them all other numbers would be rounding.

    >>> y = torch.tensor([0.5, -1.0, -1e9, -1e9])
    >>> apart(y + torch.tensor([0.0, 0.25, 0.0, 0.0]), y)
    0.25
    """
    if got.shape != y.shape:
        return math.inf
    if not (y.is_floating_point() or y.is_complex()):
        return 0.0 if bool((got == y).all()) else math.inf
    finite = y.isfinite()
    same = (got == y) | (got.isnan() & y.isnan())
    if not bool((same | finite).all()) or not bool((got.isfinite() == finite).all()):
        return math.inf
    own = typical(y)
    return max(_relative(got[part], y[part]) for part in (own, finite & ~own))


def typical(y: Tensor) -> Tensor:
    """Where a tensor is finite and no filler: not an extreme that repeats, far beyond the rest."""
    own = y.isfinite()
    if y.is_complex() or not bool(own.any()):
        return own
    for extreme in (y[own].min(), y[own].max()):
        rest = own & (y != extreme)
        repeats = int((own & ~rest).sum()) > 1 and bool(rest.any())
        if repeats and bool(extreme.abs() > FILLER * y[rest].abs().max()):
            own = rest
    return own


def _relative(got: Tensor, y: Tensor) -> float:
    if not y.numel():
        return 0.0
    away, scale = float((got - y).abs().max()), float(y.abs().max())
    return away / scale if scale else (math.inf if away else 0.0)
