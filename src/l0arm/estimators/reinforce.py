"""REINFORCE, the score function estimator, with a moving mean of past losses as its baseline.

Williams, "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement
Learning", 1992.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import BinaryEstimator
from l0arm.estimators._baseline import baseline, checked_decay, moving_mean, remember
from l0arm.estimators._memory import Memory
from l0arm.estimators._surrogate import (
    antithetic_pair,
    loss_of,
    probabilities,
    surrogate,
    uniform_like,
)


@dataclass(frozen=True)
class Reinforce(BinaryEstimator):
    """``(f(z) - b)(z - pi)``, b a moving mean of the losses of earlier steps (0 at the first).

    >>> probs = torch.tensor([0.25], requires_grad=True)
    >>> Reinforce().at(lambda z: 3 * z.sum(), probs, torch.tensor([0.1])).backward()
    >>> probs.grad  # 3 (1 - 1/4) / (1/4 3/4)
    tensor([12.])
    """

    decay: float = 0.95
    state: Memory = field(init=False, compare=False, repr=False, default_factory=moving_mean)
    forwards = 1

    def __post_init__(self) -> None:
        checked_decay(self.decay)

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        value = self.at(f, gates, uniform_like(probabilities(gates), generator))
        remember(self.state, value, self.decay)
        return value

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        """The estimate for given noise u and the baseline as it stands."""
        probs = probabilities(gates)
        z, _ = antithetic_pair(u, probs)
        value = f(z)
        s = (loss_of(value) - baseline(self.state)) * (z - probs.detach())
        return surrogate(value, s, gates)
