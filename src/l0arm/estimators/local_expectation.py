"""Local expectation gradients: every gate is flipped, so its own noise is summed out exactly.

Titsias, Lazaro-Gredilla, "Local Expectation Gradients for Black Box Variational Inference", 2015.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import NoiseEstimator
from l0arm.estimators._relaxation import live
from l0arm.estimators._surrogate import binary_draw, probabilities, surrogate
from l0arm.estimators.bitflip import flip_difference


@dataclass(frozen=True)
class LocalExpectation(NoiseEstimator):
    """``(f(z | z_j = 1) - f(z | z_j = 0)) pi_j (1 - pi_j)`` for all j: V + 1 evaluations of f.

    Example:
        >>> import torch
        >>> from l0arm.estimators import LocalExpectation
        >>> probs = torch.tensor([0.5, 0.5], requires_grad=True)
        >>> LocalExpectation()(lambda z: z @ torch.tensor([1.0, 5.0]), probs).backward()
        >>> probs.grad  # without noise, because the loss is linear
        tensor([1., 5.])
    """

    forwards = 0  # V + 1: depends on the number of gates

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        probs = probabilities(gates)
        pi = probs.detach()
        z = binary_draw(u, probs)
        value = f(z)
        s = torch.zeros_like(pi)
        for j in live(pi).nonzero().flatten().tolist():
            s[j] = flip_difference(f, z, value, j) * pi[j] * (1 - pi[j])
        return surrogate(value, s, gates)
