"""One gate flipped: what its change alone does to the loss."""

from __future__ import annotations

import torch
from torch import Tensor

from l0arm.contracts import Objective
from l0arm.estimators._surrogate import loss_of


def difference(f: Objective, z: Tensor, value: Tensor, gate: int) -> Tensor:
    """``f(z | z_i = 1) - f(z | z_i = 0)``, one of which is ``value``."""
    flipped = z.clone()
    flipped[gate] = 1 - flipped[gate]
    with torch.no_grad():
        change = loss_of(f(flipped)) - loss_of(value)
    return torch.where(z[gate] == 0, change, -change)


def chosen(weights: Tensor, w: Tensor) -> int:
    """The gate that a uniform w picks, with probabilities in proportion to the weights.

    >>> chosen(torch.tensor([1.0, 0.0, 3.0]), torch.tensor(0.25))
    2
    """
    cumulated = weights.double().cumsum(0)
    position = torch.searchsorted(cumulated, w.double() * cumulated[-1], right=True)
    return int(position.clamp(max=int(weights.nonzero()[-1])))
