"""Gaussian multiplicative gates: the group scales of BC-GNJ.

Louizos, Ullrich, Welling, "Bayesian Compression for Deep Learning", 2017: ``z ~ N(mu, sigma^2)``
under the improper prior p(z) ~ 1/|z|. A unit is pruned if its dropout rate alpha = sigma^2 / mu^2
is large: if log alpha exceeds a threshold in the gap of its histogram.
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


@dataclass(frozen=True)
class GaussianGates(ScoredGates):
    """``z ~ N(mu, sigma^2)``. The score is log alpha = log(sigma^2 / mu^2).

    Attributes:
        phi: (mu, log sigma^2, threshold) of every gate. The threshold is not trained by gradient.

    Example:
        >>> import torch
        >>> from l0arm.gates import Gaussian
        >>> gates = Gaussian()(torch.tensor([[0.5, -8.0, -3.5], [0.5, -2.0, -3.5]]))
        >>> gates.deterministic(0.5)
        tensor([0.5000, 0.0000])
    """

    score_range = (-9.0, 2.0)

    @property
    def mu(self) -> Tensor:
        """E[z]."""
        return self.phi[:, 0]

    @property
    def log_variance(self) -> Tensor:
        """log sigma^2."""
        return self.phi[:, 1]

    @property
    def log_alpha(self) -> Tensor:
        """log(sigma^2 / mu^2), the dropout rate."""
        return self.log_variance - torch.log(self.mu**2 + TINY)

    @property
    def score(self) -> Tensor:
        return self.log_alpha.detach()

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """A draw that is differentiable in phi."""
        mu = self.mu
        noise = torch.randn(mu.shape, generator=generator, dtype=mu.dtype, device=mu.device)
        return mu + torch.exp(self.log_variance / 2) * noise

    def kept_value(self) -> Tensor:
        """E[z] = mu."""
        return self.mu.detach().clone()


@dataclass(frozen=True)
class Gaussian(GateFamily):
    """The family ``z ~ N(mu, sigma^2)``, with mu ~ N(1, 0.01), log sigma^2 ~ N(-9, 0.01) initially.

    Args:
        threshold: The initial threshold of log alpha, above which a gate is pruned.

    Example:
        >>> import torch
        >>> from l0arm.gates import Gaussian
        >>> Gaussian()(Gaussian().initial(torch.full((3,), 0.5))).open_probability
        tensor([1., 1., 1.])
    """

    threshold: float = THRESHOLD

    def __call__(self, phi: Tensor) -> GaussianGates:
        return GaussianGates(phi)

    def initial(self, mean: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """All gates open with hardly any noise, whatever the mean."""
        start = mean.new_tensor([1.0, INITIAL_LOG_VARIANCE, self.threshold])
        noise = torch.randn((len(mean), 3), generator=generator, dtype=mean.dtype).to(mean.device)
        return start + INITIAL_SPREAD * noise * mean.new_tensor([1.0, 1.0, 0.0])
