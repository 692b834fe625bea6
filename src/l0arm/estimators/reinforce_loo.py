"""REINFORCE with n draws, each with the mean of the others as its baseline (RLOO, VarGrad).

Kool, van Hoof, Welling, "Buy 4 REINFORCE Samples, Get a Baseline for Free!", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import SeveralDraws, covariance, losses_of
from l0arm.estimators._surrogate import binary_draw, probabilities, surrogate


@dataclass(frozen=True)
class ReinforceLOO(SeveralDraws):
    """``1/(n-1) sum_i (f(z_i) - mean f)(z_i - pi)`` with n independent draws.

    Args:
        samples: n, the number of draws and of evaluations of f.

    Raises:
        ValueError: ``samples`` is not an integer >= 2.

    Example:
        >>> from l0arm.estimators import ReinforceLOO
        >>> ReinforceLOO(samples=8).forwards
        8
    """

    samples: int = 4

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        probs = probabilities(gates)
        draws = binary_draw(u, probs)
        value, losses = losses_of(f, draws)
        return surrogate(value, covariance(losses, draws, probs.detach()), gates)
