"""ReinMax: straight-through of second order.

Liu, Dong, Liu, Yu, Gao, "Bridging Discrete and Backpropagation: Straight-Through and Beyond", 2023.
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
class ReinMax(NoiseEstimator):
    """``1/2 |z - pi| df/dz``: on average, the trapezium rule for f(1) - f(0) in each gate.

    Exact if f is quadratic in each z_j, biased from third order on. One evaluation of f. Closed
    units must be computed: f runs masked, in the time of the dense network.

    Example:
        >>> import torch
        >>> from l0arm.estimators import ReinMax
        >>> probs = torch.tensor([0.25], requires_grad=True)
        >>> ReinMax().at(lambda z: (z**2).sum(), probs, torch.tensor([0.1])).backward()
        >>> probs.grad  # 1/2 (1 - 1/4) 2 / (1/4 3/4); a closed gate gives 0, and the mean is 1
        tensor([4.])
    """

    unbiased = False
    forwards = 1
    drops = False

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        probs = probabilities(gates)
        z = binary_draw(u, probs)
        return at_least_float32(f(through(z, probs, (z - probs.detach()).abs() / 2)))
