"""Horseshoe gates: the group scales of BC-GHS.

Louizos, Ullrich, Welling, "Bayesian Compression for Deep Learning", 2017: a unit's weights have the
scale ``z_i = s z~_i`` with half-Cauchy z~_i ~ C+(0, 1) and one s ~ C+(0, b) for the whole group. A
squared half-Cauchy is the product of a Gamma and an inverse Gamma, and all four factors have
log-normal posteriors, so ``z_i = sqrt(s_a s_b a_i b_i)`` is log-normal.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import GateFamily
from l0arm.gates.threshold import ScoredGates

# Columns of phi: the means of the logarithms, the logarithms of their variances, the threshold.
S_A, S_B, UNIT_A, UNIT_B = range(4)
LOG_VARIANCES = 4
THRESHOLD_COLUMN = 8
INITIAL_MEANS = (-3.0, 0.0, 0.0, 0.0)
INITIAL_LOG_VARIANCE = -9.0
INITIAL_SPREAD = 0.01
THRESHOLD = 4.0  # of -log mode, before a better one is chosen
LARGEST_EXPONENT = 10.0
SHOWN = (0.0, 10.0)  # -log mode from certainly kept to certainly pruned, as probs 1 to 0


@dataclass(frozen=True)
class HorseshoeGates(ScoredGates):
    """phi holds four log-normals and a threshold for every gate; s_a, s_b are its group's."""

    group_of: Tensor
    smooth = True

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of log s_a, log s_b, log a_i, log b_i: two tensors (V, 4).

        A group has one s: its gates' rows hold copies, and their mean counts, so that all copies
        get one gradient and stay equal.
        """
        rows = self.phi[:, :THRESHOLD_COLUMN].view(-1, 2, 4)
        shared, own = _group_mean(rows[..., :UNIT_A], self.group_of), rows[..., UNIT_A:]
        joined = torch.cat([shared, own], dim=-1)
        return joined[:, 0], joined[:, 1].exp()

    @property
    def mean_of_log(self) -> Tensor:
        """E[log z] = half the sum of the factors' means."""
        return self.factors[0].sum(1) / 2

    @property
    def variance_of_log(self) -> Tensor:
        """Var[log z] = a quarter of the sum of the factors' variances."""
        return self.factors[1].sum(1) / 4

    @property
    def score(self) -> Tensor:
        """-log mode of z = Var - E: above the threshold, a gate is pruned."""
        return (self.variance_of_log - self.mean_of_log).detach()

    @property
    def probs(self) -> Tensor:
        """-log mode on a scale from 0 (pruned) to 1 (kept), for histograms."""
        low, high = SHOWN
        return ((high - self.score) / (high - low)).clamp(0.0, 1.0)

    @property
    def open_probability(self) -> Tensor:
        """1 for gates that are kept, 0 for those that are pruned (a draw itself is never 0)."""
        return (self.score <= self.thresholds.detach()).to(self.phi.dtype)

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """A draw that can be differentiated in phi; the noise of s is one number for a group."""
        mean, variance = self.factors
        shape = (2, len(mean))
        noise = torch.randn(shape, generator=generator, dtype=mean.dtype, device=mean.device)
        first = torch.searchsorted(self.group_of, self.group_of)  # the first gate of each group
        shared = torch.sqrt(variance[:, :UNIT_A].sum(1)) * noise[0][first]
        own = torch.sqrt(variance[:, UNIT_A:].sum(1)) * noise[1]
        log_z = (mean.sum(1) + shared + own) / 2
        return log_z.clamp(max=LARGEST_EXPONENT).exp()

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.rsample(generator).detach()

    def deterministic(self, tau: Tensor | float) -> Tensor:
        """E[z] where -log mode is below the gate's own threshold. tau is not used."""
        return self.kept_value() * self.open_probability

    def kept_value(self) -> Tensor:
        """E[z] = exp(E[log z] + Var[log z] / 2)."""
        with torch.no_grad():
            exponent = self.mean_of_log + self.variance_of_log / 2
            return exponent.clamp(max=LARGEST_EXPONENT).exp()


@dataclass(frozen=True)
class Horseshoe(GateFamily):
    """The family; ``within`` tells it which gates share a group.

    >>> phi = Horseshoe().initial(torch.full((3,), 0.5))
    >>> Horseshoe().within(torch.tensor([0, 0, 1]))(phi).open_probability
    tensor([1., 1., 1.])
    """

    threshold: float = THRESHOLD
    group_of: Tensor | None = None

    def within(self, group_of: Tensor) -> Horseshoe:
        return Horseshoe(self.threshold, group_of)

    def __call__(self, phi: Tensor) -> HorseshoeGates:
        if self.group_of is None:
            raise TypeError(
                "horseshoe gates share a scale within a group; tell which gates belong together "
                "with Horseshoe().within(group_of)"
            )
        return HorseshoeGates(phi, self.group_of)

    def initial(self, mean: Tensor, generator: torch.Generator | None = None) -> Tensor:
        row = mean.new_tensor([*INITIAL_MEANS, *[INITIAL_LOG_VARIANCE] * 4, self.threshold])
        noise = torch.randn((len(mean), 9), generator=generator, dtype=mean.dtype).to(mean.device)
        varied = torch.zeros_like(row)
        varied[[UNIT_A, UNIT_B]] = INITIAL_SPREAD
        return row + varied * noise


def _group_mean(values: Tensor, group_of: Tensor) -> Tensor:
    """The mean over each group, at each of its gates."""
    groups = int(group_of[-1]) + 1
    counts = torch.bincount(group_of, minlength=groups).to(values.dtype)
    sums = values.new_zeros((groups, *values.shape[1:])).index_add(0, group_of, values)
    means = sums / counts.view(-1, *[1] * (values.dim() - 1))
    return means[group_of]
