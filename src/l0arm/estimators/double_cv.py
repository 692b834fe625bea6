"""DoubleCV: leave-one-out with linear control variates from the gradients of the other draws.

Titsias, Shi, "Double Control Variates for Gradient Estimation in Discrete Latent Variable Models",
2022.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import SeveralDraws, covariance, is_finite_number
from l0arm.estimators._relaxation import evaluated_with_slopes
from l0arm.estimators._surrogate import binary_draw, probabilities, surrogate


@dataclass(frozen=True)
class DoubleCV(SeveralDraws):
    """``1/(n-1) sum_k (h_k - mean h)(z_k - pi) + a pi (1 - pi) mean_k df/dz(z_k)``.

    ``h_k = f_k - a G_k.(z_k - pi)``, where G_k is the mean of df/dz over the *other* draws. Of the
    unbiased estimators it varies least once gates are polarised. Closed units must be computed: f
    runs masked, in the time of the dense network.

    Args:
        samples: n, the number of draws and of evaluations of f.
        a: The weight of the control variates. The estimate is unbiased for every a.

    Raises:
        ValueError: ``samples`` is not an integer >= 2, or ``a`` is not a finite number.

    Example:
        >>> import torch
        >>> from l0arm.estimators import DoubleCV
        >>> probs = torch.tensor([0.3, 0.5], requires_grad=True)
        >>> DoubleCV()(lambda z: z @ torch.tensor([1.0, 5.0]), probs).backward()
        >>> probs.grad  # without noise, because the loss is linear
        tensor([1., 5.])
    """

    samples: int = 2
    a: float = 1.0
    drops = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_finite_number(self.a):
            raise ValueError(f"a must be a finite number, got {self.a!r}; 1 or 0.5 do well")

    @property
    def backwards(self) -> int:
        """One per draw, and one to the weights."""
        return self.samples + 1

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        probs = probabilities(gates)
        pi = probs.detach()
        draws = binary_draw(u, probs)
        value, losses, slopes = evaluated_with_slopes(f, draws)
        others = (slopes.sum(0) - slopes) / (len(slopes) - 1)
        h = losses - self.a * (others * (draws - pi)).sum(1)
        s = covariance(h, draws, pi) + self.a * pi * (1 - pi) * slopes.mean(0)
        return surrogate(value, s, gates)
