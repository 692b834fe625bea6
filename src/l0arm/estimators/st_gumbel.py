"""Straight-through Gumbel-softmax: forward with the binary draw, backward through its relaxation.

Jang, Gu, Poole, "Categorical Reparameterization with Gumbel-Softmax", 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import NoiseEstimator
from l0arm.estimators._relaxation import (
    checked_temperature,
    logistic,
    open_gates,
    relaxed,
    through,
)
from l0arm.estimators._surrogate import probabilities
from l0arm.precision import at_least_float32


@dataclass(frozen=True)
class STGumbel(NoiseEstimator):
    """``df/dz y (1 - y) / temperature`` at ``z = 1[y > 1/2]``, where y is the concrete relaxation.

    Biased. One evaluation of f. Closed units must be computed: f runs masked, in the time of the
    dense network.

    Args:
        temperature: Of the relaxation y. As it goes to 0, the mean goes to that of ReinMax.

    Raises:
        ValueError: ``temperature`` is not a finite number > 0.

    Example:
        >>> import torch
        >>> from l0arm.estimators import STGumbel
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

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        probs = probabilities(gates)
        pi = probs.detach()
        _, slope = relaxed(logistic(pi, u), self.temperature)
        return at_least_float32(f(through(open_gates(u, pi), probs, slope)))
