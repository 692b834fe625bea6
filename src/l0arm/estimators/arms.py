"""ARMS: n mutually antithetic draws from a Dirichlet copula. n = 2 is DisARM.

Dimitriev, Zhou, "ARMS: Antithetic-REINFORCE-Multi-Sample Gradient for Binary Variables", 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import SeveralDraws, covariance, losses_of
from l0arm.estimators._surrogate import probabilities, surrogate


@dataclass(frozen=True)
class ARMS(SeveralDraws):
    """``D/(n-1) sum_i (f(z_i) - mean f)(z_i - pi)``, where D corrects for correlated draws.

    Args:
        samples: n, the number of draws and of evaluations of f.

    Raises:
        ValueError: ``samples`` is not an integer >= 2.

    Example:
        >>> from l0arm.estimators import ARMS
        >>> ARMS(samples=8).forwards
        8
    """

    samples: int = 4

    def noise(self, probs: Tensor, generator: torch.Generator | None) -> Tensor:
        """Exponential noise, one row per draw."""
        e = torch.empty_like(probs.detach().expand(self.samples, -1)).contiguous()
        return e.exponential_(generator=generator)

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        """f(z_1) with the estimate attached, for given exponential noise, one row per draw."""
        return self.of_draws(f, gates, antithetic_draws(u, probabilities(gates).detach()))

    def of_draws(self, f: Objective, gates: Gates | Tensor, draws: Tensor) -> Tensor:
        """f(z_1) with the estimate attached, for given draws, one row each."""
        pi = probabilities(gates).detach()
        value, losses = losses_of(f, draws)
        s = correction(pi, self.samples) * covariance(losses, draws, pi)
        return surrogate(value, s, gates)


def antithetic_draws(e: Tensor, pi: Tensor) -> Tensor:
    """n draws of every gate: d = e / sum e is Dirichlet, ``(1 - d_i)^(n-1)`` uniform.

    If one of them is small, the others tend to be large. For pi > 1/2 the roles of 0 and 1 are
    exchanged.
    """
    u = (1 - e / e.sum(0)) ** (len(e) - 1)
    rare = u < torch.minimum(pi, 1 - pi)
    return torch.where(pi < 0.5, rare, ~rare).to(pi.dtype)


def correction(pi: Tensor, samples: int) -> Tensor:
    """``D = pi (1-pi) / (m - C)``, m = min(pi, 1-pi), C = max(0, 2 m^(1/(n-1)) - 1)^(n-1).

    C is the probability that two draws both show the rarer value. The form (1 - m) / (1 - C / m)
    is finite at pi = 0 and 1.
    """
    m = torch.minimum(pi, 1 - pi)
    joint = (2 * m ** (1 / (samples - 1)) - 1).clamp(min=0) ** (samples - 1)
    return (1 - m) / (1 - joint / m.clamp(min=torch.finfo(m.dtype).tiny))
