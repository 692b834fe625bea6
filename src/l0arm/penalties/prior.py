"""A Beta prior on the keep probability of a gate, as in generalized dropout."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Gates
from l0arm.gating import Gated
from l0arm.penalties.strength import Strength, checked, per_gate

NEAREST = 1e-3  # pi is clamped to this distance from 0 and 1, where the logarithms diverge


@dataclass(frozen=True)
class BetaPrior:
    """``-lam sum_g |g| ((a - 1) log pi + (b - 1) log(1 - pi))``, minus log Beta(pi; a, b).

    a = b = 1 is flat, a = b < 1 drives gates to 0 or 1, a < b closes them.

    Args:
        lam: The strength: one number, or one per group.
        a: The first parameter of the Beta distribution.
        b: The second one.

    Raises:
        ValueError: A strength is negative or not finite, or a or b is not positive.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 4, 2)), lam=0.0)
        >>> BetaPrior(1.0, a=1.0, b=1.0)(gated, gated.gates).abs().item()  # flat
        0.0
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
