"""MuProp: REINFORCE on the remainder of a first-order expansion of f at z = pi.

Gu, Levine, Sutskever, Mnih, "MuProp: Unbiased Backpropagation for Stochastic Neural Networks",
2016.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import NoiseEstimator
from l0arm.estimators._relaxation import slope_of
from l0arm.estimators._surrogate import binary_draw, loss_of, probabilities, surrogate


@dataclass(frozen=True)
class MuProp(NoiseEstimator):
    """``(f(z) - f(pi) - G.(z - pi))(z - pi) + G pi (1 - pi)``, with G = df/dz at z = pi.

    Two evaluations of f. All units are computed at z = pi: f runs masked, in the time of the dense
    network.

    Example:
        >>> import torch
        >>> from l0arm.estimators import MuProp
        >>> probs = torch.tensor([0.3, 0.5], requires_grad=True)
        >>> MuProp()(lambda z: z @ torch.tensor([1.0, 5.0]), probs).backward()
        >>> probs.grad  # without noise, because the loss is linear
        tensor([1., 5.])
    """

    forwards = 2
    backwards = 2
    drops = False

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        probs = probabilities(gates)
        pi = probs.detach()
        z = binary_draw(u, probs)
        value = f(z)  # first, and with its graph: it also trains the weights
        mean = pi.clone().requires_grad_()
        at_mean = f(mean)
        slope = slope_of(at_mean, mean)
        rest = loss_of(value) - loss_of(at_mean) - slope @ (z - pi)
        return surrogate(value, rest * (z - pi) + slope * pi * (1 - pi), gates)
