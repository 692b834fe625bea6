"""A Beta prior on the keep probability of a gate: that of generalized dropout."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Gates
from l0arm.gating import Gated
from l0arm.penalties.strength import Strength, checked, per_gate

NEAREST = 1e-3  # pi is taken this far from 0 and 1, where the logarithms diverge


@dataclass(frozen=True)
class BetaPrior:
    """``-lam sum_g |g| ((a - 1) log pi + (b - 1) log(1 - pi))``, minus log Beta(pi; a, b).

    a = b = 1 is flat, a = b < 1 drives gates to 0 or 1, a < b closes them.
    """

    lam: Strength
    a: float = 1.0
    b: float = 2.0

    def __post_init__(self) -> None:
        checked(self.lam)
        if not (self.a > 0 and self.b > 0):
            raise ValueError(f"a Beta prior needs a > 0 and b > 0; got a={self.a}, b={self.b}")

    def __call__(self, gated: Gated, gates: Gates) -> Tensor:
        pi = gates.probs.clamp(NEAREST, 1 - NEAREST)
        density = (self.a - 1) * torch.log(pi) + (self.b - 1) * torch.log1p(-pi)
        return -(per_gate(self.lam, gated) * gated.sizes * density).sum()
