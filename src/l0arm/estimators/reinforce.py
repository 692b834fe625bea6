"""REINFORCE, the score function estimator, with a moving mean of past losses as its baseline.

Williams, "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement
Learning", 1992.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import NoiseEstimator
from l0arm.estimators._memory import MovingMean
from l0arm.estimators._surrogate import binary_draw, loss_of, probabilities, surrogate


@dataclass(frozen=True)
class Reinforce(NoiseEstimator):
    """``(f(z) - b)(z - pi)``, where b is a moving mean of the losses of earlier steps.

    One evaluation of f. b is 0 at the first step.

    Args:
        decay: The share of the past in the moving mean.

    Raises:
        ValueError: ``decay`` is not in [0, 1).

    Example:
        >>> import torch
        >>> from l0arm.estimators import Reinforce
        >>> probs = torch.tensor([0.25], requires_grad=True)
        >>> Reinforce().at(lambda z: 3 * z.sum(), probs, torch.tensor([0.1])).backward()
        >>> probs.grad  # 3 (1 - 1/4) / (1/4 3/4)
        tensor([12.])
    """

    decay: float = 0.95
    state: MovingMean = field(init=False, compare=False, repr=False)
    forwards = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", MovingMean(self.decay))

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        value = super().__call__(f, gates, generator)
        self.state.update(value)
        return value

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        """f(z) with the estimate attached, for given noise u and the present baseline."""
        probs = probabilities(gates)
        z = binary_draw(u, probs)
        value = f(z)
        s = (loss_of(value) - self.state.value) * (z - probs.detach())
        return surrogate(value, s, gates)
