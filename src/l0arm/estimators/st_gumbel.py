"""Straight-through Gumbel-softmax: forward with the binary draw, backward through its relaxation.

Jang, Gu, Poole, "Categorical Reparameterization with Gumbel-Softmax", 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import BinaryEstimator
from l0arm.estimators._relaxation import (
    checked_temperature,
    logistic,
    open_gates,
    relaxed,
    through,
)
from l0arm.estimators._surrogate import probabilities, uniform_like
from l0arm.precision import at_least_float32


@dataclass(frozen=True)
class STGumbel(BinaryEstimator):
    """``df/dz y (1 - y) / temperature`` at ``z = 1[y > 1/2]``, y the concrete relaxation.

    Closed units must be computed: f runs masked, and takes the time of the dense network.

    >>> probs = torch.tensor([0.5], requires_grad=True)
    >>> STGumbel(temperature=1.0).at(lambda z: z.sum(), probs, torch.tensor([0.5])).backward()
    >>> probs.grad  # y (1 - y) / (pi (1 - pi))
    tensor([1.])
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
        _, slope = relaxed(logistic(pi, u), self.temperature)
        return at_least_float32(f(through(open_gates(u, pi), probs, slope)))
