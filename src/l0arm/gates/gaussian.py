"""Gaussian multiplicative gates: the group scales of BC-GNJ.

Louizos, Ullrich, Welling, "Bayesian Compression for Deep Learning", 2017: ``z ~ N(mu, sigma^2)``
under the improper prior p(z) ~ 1/|z|. A group goes when its dropout rate alpha = sigma^2 / mu^2 is
large: when log alpha passes a threshold that lies in the gap of its histogram.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import GateFamily
from l0arm.gates.threshold import ScoredGates

INITIAL_SPREAD = 0.01
INITIAL_LOG_VARIANCE = -9.0
THRESHOLD = -3.5  # of log alpha, before a better one is chosen (published ones: -2.8 to -5)
TINY = 1e-8  # keeps log mu^2 finite
SHOWN = (-9.0, 2.0)  # log alpha from certainly kept to certainly pruned, as probs 1 to 0


@dataclass(frozen=True)
class GaussianGates(ScoredGates):
    """phi holds (mu, log sigma^2, threshold) of every gate; the last is not trained."""

    smooth = True

    @property
    def mu(self) -> Tensor:
        return self.phi[:, 0]

    @property
    def log_variance(self) -> Tensor:
        return self.phi[:, 1]

    @property
    def log_alpha(self) -> Tensor:
        return self.log_variance - torch.log(self.mu**2 + TINY)

    @property
    def score(self) -> Tensor:
        """What is compared with the threshold: above it, a gate is pruned."""
        return self.log_alpha.detach()

    @property
    def probs(self) -> Tensor:
        """log alpha on a scale from 0 (pruned) to 1 (kept), for histograms."""
        low, high = SHOWN
        return ((high - self.score) / (high - low)).clamp(0.0, 1.0)

    @property
    def open_probability(self) -> Tensor:
        """1 for gates that are kept, 0 for those that are pruned (a draw itself is never 0)."""
        return (self.score <= self.thresholds.detach()).to(self.phi.dtype)

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """A draw that can be differentiated in phi."""
        mu = self.mu
        noise = torch.randn(mu.shape, generator=generator, dtype=mu.dtype, device=mu.device)
        return mu + torch.exp(self.log_variance / 2) * noise

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.rsample(generator).detach()

    def deterministic(self, tau: Tensor | float) -> Tensor:
        """mu where log alpha is below the gate's own threshold. tau is not used."""
        return self.kept_value() * self.open_probability

    def kept_value(self) -> Tensor:
        """E[z] = mu."""
        return self.mu.detach().clone()


@dataclass(frozen=True)
class Gaussian(GateFamily):
    """The family: mu ~ N(1, 0.01), log sigma^2 ~ N(-9, 0.01).

    >>> Gaussian()(Gaussian().initial(torch.full((3,), 0.5))).open_probability
    tensor([1., 1., 1.])
    """

    threshold: float = THRESHOLD

    def __call__(self, phi: Tensor) -> GaussianGates:
        return GaussianGates(phi)

    def initial(self, mean: Tensor, generator: torch.Generator | None = None) -> Tensor:
        start = mean.new_tensor([1.0, INITIAL_LOG_VARIANCE, self.threshold])
        noise = torch.randn((len(mean), 3), generator=generator, dtype=mean.dtype).to(mean.device)
        return start + INITIAL_SPREAD * noise * mean.new_tensor([1.0, 1.0, 0.0])
