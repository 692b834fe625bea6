"""Log-normal gates truncated to (e^a, 1]: the noise of structured Bayesian pruning.

Neklyudov, Molchanov, Ashukha, Vetrov, "Structured Bayesian Pruning via Log-Normal Multiplicative
Noise", 2017. All moments are computed in float64 from logarithms of the normal distribution
function Phi, because direct formulas overflow for sigma above 18. Far in the tail, differences of
log Phi have no correct digits left, and a series is used instead: ``Phi(-t) = Phi'(t) P(s) / t``
with s = 1/t^2 and P(s) = 1 - s + 3 s^2 - 15 s^3 + ...
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l0arm.contracts import GateFamily, Gates

A, B = -20.0, 0.0  # log z lies in [A, B]
BOUNDS = (-20.0, 5.0)  # of mu and log sigma, as in the published code
NOTHING = 40.0  # for x <= 0, Phi(x - 40) is less than e^-800 Phi(x)
NEGLIGIBLE = 1e-6  # gates with a smaller mean are pruned, whatever their variance
INITIAL_MU, INITIAL_LOG_SIGMA = 0.0, -5.0  # z is 1 to half a percent
FAR = 30.0  # the tail, where the terms of the series leave an error of 1e-15
TERMS = 9


@dataclass(frozen=True)
class TruncatedLogNormalGates(Gates):
    """``log z ~ N(mu, sigma^2)`` restricted to [A, B].

    Attributes:
        phi: (mu, log sigma) of every gate.

    Example:
        >>> import torch
        >>> from l0arm.gates import TruncatedLogNormal
        >>> gates = TruncatedLogNormal()(torch.tensor([[-3.0, -2.0], [-3.0, 1.0]]))
        >>> gates.deterministic(0.5)  # the second has more noise than signal
        tensor([0.0502, 0.0000])
    """

    smooth = True

    @property
    def wide(self) -> TruncatedLogNormalGates:
        """The same gates in float64, where parts of a gradient that cancel are summed."""
        return replace(self, phi=self.phi.double())

    @property
    def mu(self) -> Tensor:
        """The mean of log z before truncation."""
        return self.phi[:, 0].double()

    @property
    def log_sigma(self) -> Tensor:
        """The logarithm of the standard deviation of log z before truncation."""
        return self.phi[:, 1].double()

    @property
    def log_mass(self) -> Tensor:
        """log Z of the truncation, Z = Phi(beta) - Phi(alpha)."""
        return self._log_mass(0)

    @property
    def edges(self) -> tuple[Tensor, Tensor]:
        """(alpha, beta): the ends of the support in standard units."""
        sigma = self.log_sigma.exp()
        return (A - self.mu) / sigma, (B - self.mu) / sigma

    def log_moment(self, n: int) -> Tensor:
        """log E[z^n] = n mu + n^2 sigma^2 / 2 + log(Phi(beta - n s) - Phi(alpha - n s)) - log Z.

        Far in the tail, t = -beta: log P(t + n s) - log P(t) - log(1 + n s / t).
        """
        far = -self.edges[1] > FAR
        near, tail = self.split(far)
        shift = n * near.log_sigma.exp()
        direct = n * near.mu + shift**2 / 2 + near._log_mass(n) - near.log_mass
        t, shift = -tail.edges[1], n * tail.log_sigma.exp()
        series = log_series(t + shift) - log_series(t) - torch.log1p(shift / t)
        return torch.where(far, n * B + series, direct)

    def split(self, far: Tensor) -> tuple[TruncatedLogNormalGates, TruncatedLogNormalGates]:
        """Gates for two formulas, each with harmless values where the other formula applies."""
        harmless = self.phi.new_tensor([[(A + B) / 2, 0.0], [B + 1.0, -5.0]])
        return (
            replace(self, phi=torch.where(far[:, None], harmless[0], self.phi)),
            replace(self, phi=torch.where(far[:, None], self.phi, harmless[1])),
        )

    @property
    def mean(self) -> Tensor:
        """E[z]."""
        return self.log_moment(1).exp()

    @property
    def snr(self) -> Tensor:
        """E[z] / std(z) = 1 / sqrt(expm1(log E[z^2] - 2 log E[z]))."""
        return torch.expm1((self.log_moment(2) - 2 * self.log_moment(1)).clamp(min=0.0)).rsqrt()

    @property
    def probs(self) -> Tensor:
        """snr^2 / (1 + snr^2): 1/2 if signal and noise are equal."""
        with torch.no_grad():
            squared = self.snr**2
            kept = torch.where(squared.isinf(), 1.0, squared / (1 + squared))
            return (kept * (self.mean > NEGLIGIBLE)).to(self.phi.dtype)

    @property
    def open_probability(self) -> Tensor:
        """1 for gates that are kept, 0 for gates that are pruned. A draw itself is never 0."""
        return (self.deterministic(0.5) != 0).to(self.phi.dtype)

    def at(self, u: Tensor) -> Tensor:
        """z for given noise u: ``exp(mu + sigma Phi^-1(Phi(alpha) + u Z))``, with its graph."""
        wide = self.wide
        alpha, beta = wide.edges
        low, high = torch.special.ndtr(alpha), torch.special.ndtr(beta)
        share = (low + u.double() * (high - low)).clamp(1e-5, 1 - 1e-5)
        log_z = wide.mu + wide.log_sigma.exp() * torch.special.ndtri(share)
        z: Tensor = log_z.clamp(A, B).exp().to(self.phi.dtype)
        return z

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """A draw that is differentiable in phi."""
        shape, device = self.phi.shape[:1], self.phi.device
        return self.at(torch.rand(shape, generator=generator, dtype=torch.float64, device=device))

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.rsample(generator).detach()

    def deterministic(self, tau: Tensor | float) -> Tensor:
        """E[z] if the signal-to-noise ratio is large enough: snr > 1 for tau = 1/2."""
        with torch.no_grad():
            kept = self.probs > tau
            return torch.where(kept, self.mean.to(self.phi.dtype), 0.0)

    def kept_value(self) -> Tensor:
        """E[z], and 0 if that is negligible."""
        return self.deterministic(0.0)

    def _log_mass(self, n: int) -> Tensor:
        """log(Phi(beta - n sigma) - Phi(alpha - n sigma)), mirrored where both are positive."""
        alpha, beta = self.edges
        shift = n * self.log_sigma.exp()
        low, high = alpha - shift, beta - shift
        mirrored = low > 0
        low, high = torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)
        low = torch.maximum(low, high.clamp(max=0.0) - NOTHING)
        top, bottom = torch.special.log_ndtr(high), torch.special.log_ndtr(low)
        log_mass: Tensor = top + torch.log(-torch.expm1((bottom - top).clamp(max=-math.ulp(1.0))))
        return log_mass


@dataclass(frozen=True)
class TruncatedLogNormal(GateFamily):
    """The family of log-normal gates truncated to (e^-20, 1]. They start with hardly any noise.

    Example:
        >>> import torch
        >>> from l0arm.gates import TruncatedLogNormal
        >>> family = TruncatedLogNormal()
        >>> family(family.initial(torch.full((1,), 0.5))).mean
        tensor([0.9946], dtype=torch.float64)
    """

    def __call__(self, phi: Tensor) -> TruncatedLogNormalGates:
        return TruncatedLogNormalGates(phi)

    def initial(self, mean: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """mu = 0, log sigma = -5, whatever the mean."""
        start = mean.new_tensor([INITIAL_MU, INITIAL_LOG_SIGMA])
        return start.expand(len(mean), 2).clone()


def shortfall(s: Tensor) -> Tensor:
    """``(1 - P(s)) / s = 1 - 3 s + 15 s^2 - ...`` of the tail series, without cancellation."""
    total = s.new_ones(())
    for odd in range(2 * TERMS - 1, 1, -2):
        total = 1 - odd * s * total
    return total


def log_series(t: Tensor) -> Tensor:
    """log P of the tail series, at s = 1/t^2."""
    s = 1 / t**2
    return (-s * shortfall(s)).log1p()
