"""REINFORCE with n draws, each with the mean of the others as its baseline (RLOO, VarGrad).

Kool, van Hoof, Welling, "Buy 4 REINFORCE Samples, Get a Baseline for Free!", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import BinaryEstimator
from l0arm.estimators._samples import checked_samples, covariance, losses_of
from l0arm.estimators._surrogate import (
    antithetic_pair,
    probabilities,
    surrogate,
    uniform_like,
)


@dataclass(frozen=True)
class ReinforceLOO(BinaryEstimator):
    """``1/(n-1) sum_i (f(z_i) - mean f)(z_i - pi)`` with n independent draws.

    >>> ReinforceLOO(samples=4).forwards
    4
    """

    samples: int = 4

    def __post_init__(self) -> None:
        checked_samples(self.samples)

    @property
    def forwards(self) -> int:
        """One for each sample."""
        return self.samples

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        probs = probabilities(gates)
        return self.at(f, gates, uniform_like(probs.expand(self.samples, -1), generator))

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        """The estimate for given noise u, one row for each draw."""
        probs = probabilities(gates)
        draws, _ = antithetic_pair(u, probs)
        value, losses = losses_of(f, draws)
        return surrogate(value, covariance(losses, draws, probs.detach()), gates)
