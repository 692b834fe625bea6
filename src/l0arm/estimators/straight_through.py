"""Straight-through: the gradient in z is used as the gradient in pi. Cheap, and biased.

Bengio, Leonard, Courville, "Estimating or Propagating Gradients Through Stochastic Neurons for
Conditional Computation", 2013.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import NoiseEstimator
from l0arm.estimators._relaxation import through
from l0arm.estimators._surrogate import binary_draw, probabilities
from l0arm.precision import at_least_float32


@dataclass(frozen=True)
class StraightThrough(NoiseEstimator):
    """Uses df/dz at the draw as dE[f]/dpi. Exact if f is linear in each z_j, biased otherwise.

    One evaluation of f. Closed units must be computed: f runs masked, in the time of the dense
    network.

    Example:
        >>> import torch
        >>> from l0arm.estimators import StraightThrough
        >>> probs = torch.tensor([0.3, 0.5], requires_grad=True)
        >>> StraightThrough()(lambda z: z @ torch.tensor([1.0, 5.0]), probs).backward()
        >>> probs.grad
        tensor([1., 5.])
    """

    unbiased = False
    forwards = 1
    drops = False

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        probs = probabilities(gates)
        pi = probs.detach()
        return at_least_float32(f(through(binary_draw(u, probs), probs, pi * (1 - pi))))
