"""How far two tensors that should be equal are apart."""

from __future__ import annotations

import math

import torch
from torch import Tensor

FILLER = 1e3  # times everything else, and again and again: what masks put in the place of others
LONE = 1e4  # the same of what does not repeat; 1e4 itself at least, or the rest might be rounding
KINDS = 2  # of fillers in one tensor


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
    """Where a tensor is finite and no filler: no number of a size far beyond the rest."""
    own = y.isfinite()
    if y.is_complex():
        return own
    for _ in range(KINDS):
        rest = own & ~_largest(y, own)
        if not _far(y[own & ~rest], y[rest]):
            break
        own = rest
    return own


def _largest(y: Tensor, own: Tensor) -> Tensor:
    """Where a number has the size of the largest, whatever its sign."""
    size = y.abs()
    return own & (size >= size[own].max() / 2) if bool(own.any()) else own


def _far(top: Tensor, rest: Tensor) -> bool:
    """Whether some numbers are so large beside the rest that they cannot be of its kind."""
    if not rest.numel() or not bool(rest.any()):
        return False  # nothing is hidden, or zeros, which have no size to be compared with
    times = top.abs().max().double() / rest.abs().max().double()
    repeats = torch.unique(top).numel() < top.numel()
    return bool(times > FILLER) if repeats else bool(times > LONE and top.abs().max() > LONE)


def _relative(got: Tensor, y: Tensor) -> float:
    if not y.numel():
        return 0.0
    away, scale = float((got - y).abs().max()), float(y.abs().max())
    return away / scale if scale else (math.inf if away else 0.0)
