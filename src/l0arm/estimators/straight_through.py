"""Straight-through: the gradient in z is taken for one in pi. Cheap, and biased.

Bengio, Leonard, Courville, "Estimating or Propagating Gradients Through Stochastic Neurons for
Conditional Computation", 2013.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import BinaryEstimator
from l0arm.estimators._relaxation import through
from l0arm.estimators._surrogate import antithetic_pair, probabilities, uniform_like
from l0arm.precision import at_least_float32


@dataclass(frozen=True)
class StraightThrough(BinaryEstimator):
    """dE[f]/dpi is taken to be df/dz at the draw: right if f is linear in each z_j, else biased.

    Closed units must be computed: f runs masked, and takes the time of the dense network.

    >>> probs = torch.tensor([0.3, 0.5], requires_grad=True)
    >>> StraightThrough()(lambda z: z @ torch.tensor([1.0, 5.0]), probs).backward(); probs.grad
    tensor([1., 5.])
    """

    unbiased = False
    forwards = 1
    drops = False

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        return self.at(f, gates, uniform_like(probabilities(gates), generator))

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        """The estimate for given noise u."""
        probs = probabilities(gates)
        pi = probs.detach()
        z, _ = antithetic_pair(u, probs)
        return at_least_float32(f(through(z, probs, pi * (1 - pi))))
