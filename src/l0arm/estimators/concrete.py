"""The binary concrete (Gumbel-softmax) relaxation: gates between 0 and 1, differentiable, biased.

Maddison, Mnih, Teh, "The Concrete Distribution", 2017; Jang, Gu, Poole, "Categorical
Reparameterization with Gumbel-Softmax", 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import NoiseEstimator
from l0arm.estimators._relaxation import checked_temperature, live, logistic, relaxed, through
from l0arm.estimators._surrogate import probabilities
from l0arm.precision import at_least_float32


@dataclass(frozen=True)
class Concrete(NoiseEstimator):
    """f at ``y = sigmoid((logit pi + logit u) / temperature)`` instead of a binary draw.

    The value, and the gradient of the weights, are those of f at y: no other estimator has a draw
    that is not binary. Biased. All units are computed: f runs masked, in the time of the dense
    network.

    Args:
        temperature: The bias vanishes and the variance grows as it goes to 0.

    Raises:
        ValueError: ``temperature`` is not a finite number > 0.

    Example:
        >>> import torch
        >>> from l0arm.estimators import Concrete
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

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        """f(y) with its graph to pi, for given noise u."""
        probs = probabilities(gates)
        pi = probs.detach()
        y, slope = relaxed(logistic(pi, u), self.temperature)
        y = torch.where(live(pi), y, pi.round())  # a saturated gate is 0 or 1
        return at_least_float32(f(through(y, probs, slope)))
