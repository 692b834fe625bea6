"""The binary concrete (Gumbel-softmax) relaxation: gates between 0 and 1, differentiable, biased.

Maddison, Mnih, Teh, "The Concrete Distribution", 2017; Jang, Gu, Poole, "Categorical
Reparameterization with Gumbel-Softmax", 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import BinaryEstimator
from l0arm.estimators._relaxation import checked_temperature, live, logistic, relaxed, through
from l0arm.estimators._surrogate import probabilities, uniform_like
from l0arm.precision import at_least_float32


@dataclass(frozen=True)
class Concrete(BinaryEstimator):
    """f at ``y = sigmoid((logit pi + logit u) / temperature)`` in place of a binary draw.

    Value and weights' gradient are those of f at y, the one estimator whose draw is not binary.
    All units must be computed: f runs masked, and takes the time of the dense network.

    >>> probs = torch.tensor([0.5], requires_grad=True)
    >>> Concrete().at(lambda z: z.sum(), probs, torch.tensor([0.5])).item()
    0.5
    """

    temperature: float = 2 / 3
    unbiased = False
    forwards = 1
    drops = False

    def __post_init__(self) -> None:
        checked_temperature(self.temperature)

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        return self.at(f, gates, uniform_like(probabilities(gates), generator))

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        """The estimate for given noise u."""
        probs = probabilities(gates)
        pi = probs.detach()
        y, slope = relaxed(logistic(pi, u), self.temperature)
        y = torch.where(live(pi), y, pi.round())  # a saturated gate is 0 or 1
        return at_least_float32(f(through(y, probs, slope)))
