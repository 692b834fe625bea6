"""MuProp: REINFORCE on what a first-order expansion of f at z = pi leaves over.

Gu, Levine, Sutskever, Mnih, "MuProp: Unbiased Backpropagation for Stochastic Neural Networks",
2016.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import BinaryEstimator
from l0arm.estimators._relaxation import slope_of
from l0arm.estimators._surrogate import (
    antithetic_pair,
    loss_of,
    probabilities,
    surrogate,
    uniform_like,
)


@dataclass(frozen=True)
class MuProp(BinaryEstimator):
    """``(f(z) - f(pi) - G.(z - pi))(z - pi) + G pi (1 - pi)``, with G = df/dz at z = pi.

    f(pi) is dense: it runs masked, and takes the time of the dense network.

    >>> probs = torch.tensor([0.3, 0.5], requires_grad=True)
    >>> MuProp()(lambda z: z @ torch.tensor([1.0, 5.0]), probs).backward(); probs.grad
    tensor([1., 5.])
    """

    forwards = 2
    backwards = 2
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
        value = f(z)
        mean = pi.clone().requires_grad_()
        at_mean = f(mean)
        slope = slope_of(at_mean, mean)
        rest = loss_of(value) - loss_of(at_mean) - slope @ (z - pi)
        return surrogate(value, rest * (z - pi) + slope * pi * (1 - pi), gates)
