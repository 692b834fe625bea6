"""DoubleCV: leave-one-out with linear control variates from the gradients of the other draws.

Titsias, Shi, "Double Control Variates for Gradient Estimation in Discrete Latent Variable Models",
2022.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import BinaryEstimator
from l0arm.estimators._finite import finite
from l0arm.estimators._relaxation import slope_of
from l0arm.estimators._samples import checked_samples, covariance
from l0arm.estimators._surrogate import (
    antithetic_pair,
    loss_of,
    probabilities,
    surrogate,
    uniform_like,
)


@dataclass(frozen=True)
class DoubleCV(BinaryEstimator):
    """``1/(n-1) sum_k (h_k - mean h)(z_k - pi) + a pi (1 - pi) mean_k df/dz(z_k)``.

    ``h_k = f_k - a G_k.(z_k - pi)`` where G_k is the mean of df/dz over the *other* draws. Unbiased
    for every a; of the unbiased estimators it varies least once gates are polarised.
    Closed units must be computed: f runs masked, and takes the time of the dense network.

    >>> probs = torch.tensor([0.3, 0.5], requires_grad=True)
    >>> DoubleCV()(lambda z: z @ torch.tensor([1.0, 5.0]), probs).backward(); probs.grad
    tensor([1., 5.])
    """

    samples: int = 2
    a: float = 1.0
    drops = False

    def __post_init__(self) -> None:
        checked_samples(self.samples)
        if not finite(self.a):
            raise ValueError(f"a must be a finite number, got {self.a!r}; 1 or 0.5 do well")

    @property
    def forwards(self) -> int:
        """One for each sample."""
        return self.samples

    @property
    def backwards(self) -> int:
        """One for each sample, and one to the weights."""
        return self.samples + 1

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        probs = probabilities(gates)
        return self.at(f, gates, uniform_like(probs.expand(self.samples, -1), generator))

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        """The estimate for given noise u, one row for each draw."""
        probs = probabilities(gates)
        pi = probs.detach()
        draws, _ = antithetic_pair(u, probs)
        value, losses, slopes = _evaluated(f, draws)
        others = (slopes.sum(0) - slopes) / (len(slopes) - 1)
        h = losses - self.a * (others * (draws - pi)).sum(1)
        s = covariance(h, draws, pi) + self.a * pi * (1 - pi) * slopes.mean(0)
        return surrogate(value, s, gates)


def _evaluated(f: Objective, draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """f at the first draw with its graph; losses and df/dz at all of them, whose graphs may go."""
    first, losses, slopes = None, [], []
    for z in draws:
        leaf = z.clone().requires_grad_()
        value = f(leaf)
        first = value if first is None else first  # it also trains the weights
        losses.append(loss_of(value).reshape(()))
        slopes.append(slope_of(value, leaf))
    assert first is not None
    return first, torch.stack(losses), torch.stack(slopes)
