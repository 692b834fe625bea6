"""ARMS: n mutually antithetic draws, from a Dirichlet copula; n = 2 is DisARM.

Dimitriev, Zhou, "ARMS: Antithetic-REINFORCE-Multi-Sample Gradient for Binary Variables", 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import BinaryEstimator
from l0arm.estimators._samples import checked_samples, covariance, losses_of
from l0arm.estimators._surrogate import probabilities, surrogate


@dataclass(frozen=True)
class ARMS(BinaryEstimator):
    """``D/(n-1) sum_i (f(z_i) - mean f)(z_i - pi)``; D undoes the correlation of the draws.

    >>> ARMS(samples=4).forwards
    4
    """

    samples: int = 4

    def __post_init__(self) -> None:
        checked_samples(self.samples)

    @property
    def forwards(self) -> int:
        """One for each sample."""
        return self.samples

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        probs = probabilities(gates).detach()
        e = torch.empty_like(probs.expand(self.samples, -1)).contiguous()
        return self.at(f, gates, e.exponential_(generator=generator))

    def at(self, f: Objective, gates: Gates | Tensor, e: Tensor) -> Tensor:
        """The estimate for given exponential noise e, one row for each draw."""
        probs = probabilities(gates)
        return self.of_draws(f, gates, antithetic_draws(e, probs.detach()))

    def of_draws(self, f: Objective, gates: Gates | Tensor, draws: Tensor) -> Tensor:
        """The estimate for given draws, one row each."""
        pi = probabilities(gates).detach()
        value, losses = losses_of(f, draws)
        s = correction(pi, self.samples) * covariance(losses, draws, pi)
        return surrogate(value, s, gates)


def antithetic_draws(e: Tensor, pi: Tensor) -> Tensor:
    """n draws of every gate: d = e / sum e is Dirichlet, ``(1 - d_i)^(n-1)`` uniform.

    If one is small, the others tend to be large. Above 1/2 the roles of 0 and 1 are exchanged.
    """
    u = (1 - e / e.sum(0)) ** (len(e) - 1)
    rare = u < torch.minimum(pi, 1 - pi)
    return torch.where(pi < 0.5, rare, ~rare).to(pi.dtype)


def correction(pi: Tensor, samples: int) -> Tensor:
    """``D = pi (1-pi) / (m - C)``, m = min(pi, 1-pi), C = max(0, 2 m^(1/(n-1)) - 1)^(n-1).

    C is the probability that two draws both show the rarer value. Written as
    (1 - m) / (1 - C / m), nothing vanishes at pi = 0 or 1.
    """
    m = torch.minimum(pi, 1 - pi)
    joint = (2 * m ** (1 / (samples - 1)) - 1).clamp(min=0) ** (samples - 1)
    return (1 - m) / (1 - joint / m.clamp(min=torch.finfo(m.dtype).tiny))
