"""Local expectation gradients: every gate is flipped, so its own noise is summed out exactly.

Titsias, Lazaro-Gredilla, "Local Expectation Gradients for Black Box Variational Inference", 2015.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import BinaryEstimator
from l0arm.estimators._flips import difference
from l0arm.estimators._relaxation import live
from l0arm.estimators._surrogate import (
    antithetic_pair,
    probabilities,
    surrogate,
    uniform_like,
)


@dataclass(frozen=True)
class LocalExpectation(BinaryEstimator):
    """``(f(z | z_j = 1) - f(z | z_j = 0)) pi_j (1 - pi_j)`` for all j: V + 1 evaluations.

    >>> probs = torch.tensor([0.5, 0.5], requires_grad=True)
    >>> LocalExpectation()(lambda z: z @ torch.tensor([1.0, 5.0]), probs).backward()
    >>> probs.grad  # a linear loss: no noise at all
    tensor([1., 5.])
    """

    forwards = 0  # V + 1: depends on the number of gates

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        return self.at(f, gates, uniform_like(probabilities(gates), generator))

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        """The estimate for given noise u."""
        probs = probabilities(gates)
        pi = probs.detach()
        z, _ = antithetic_pair(u, probs)
        value = f(z)
        s = torch.zeros_like(pi)
        for j in live(pi).nonzero().flatten().tolist():
            s[j] = difference(f, z, value, j) * pi[j] * (1 - pi[j])
        return surrogate(value, s, gates)
