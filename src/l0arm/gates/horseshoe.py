"""Horseshoe gates: the group scales of BC-GHS.

Louizos, Ullrich, Welling, "Bayesian Compression for Deep Learning", 2017: a unit's weights have the
scale ``z_i = s z~_i`` with half-Cauchy z~_i ~ C+(0, 1) and one s ~ C+(0, b) for the whole group. A
squared half-Cauchy is the product of a Gamma and an inverse Gamma, and all four factors have
log-normal posteriors, so ``z_i = sqrt(s_a s_b a_i b_i)`` is log-normal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from l0arm.contracts import GateFamily
from l0arm.gates.threshold import ScoredGates

# Columns of phi: 4 means of logarithms (s_a, s_b, a, b), 4 log variances, the threshold.
UNIT_A, UNIT_B = 2, 3
THRESHOLD_COLUMN = 8
INITIAL_MEANS = (-3.0, 0.0, 0.0, 0.0)
INITIAL_LOG_VARIANCE = -9.0
INITIAL_SPREAD = 0.01
THRESHOLD = 4.0  # of -log mode, before a better one is chosen
LARGEST_EXPONENT = 10.0


class Factors(NamedTuple):
    """Mean and variance of the logarithms of the four factors of z, one number per gate each."""

    s_a: tuple[Tensor, Tensor]
    s_b: tuple[Tensor, Tensor]
    a: tuple[Tensor, Tensor]
    b: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class HorseshoeGates(ScoredGates):
    """``z = sqrt(s_a s_b a b)``. phi holds four log-normals and a threshold for every gate.

    s_a and s_b belong to the gate's group. The score is -log mode of z. The threshold is not
    trained by gradient.

    Attributes:
        phi: One row per gate: four means of logarithms, four log variances, the threshold.
        group_of: The number of each gate's group.

    Example:
        >>> import torch
        >>> from l0arm.gates import Horseshoe
        >>> phi = Horseshoe(threshold=1.0).initial(torch.full((2,), 0.5))  # -log mode is 1.5
        >>> Horseshoe().within(torch.tensor([0, 0]))(phi).deterministic(0.5)
        tensor([0., 0.])
    """

    group_of: Tensor
    score_range = (0.0, 10.0)

    @property
    def factors(self) -> Factors:
        """The log-normal posteriors of s_a, s_b, a_i and b_i."""
        mean, variance = self._moments
        return Factors(*zip(mean.unbind(1), variance.unbind(1), strict=True))

    @property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of log s_a, log s_b, log a_i, log b_i: two tensors (V, 4).

        A group has one s. The rows of its gates hold copies, and their mean is used, so that all
        copies get the same gradient and stay equal.
        """
        rows = self.phi[:, :THRESHOLD_COLUMN].view(-1, 2, 4)
        shared, own = _group_mean(rows[..., :UNIT_A], self.group_of), rows[..., UNIT_A:]
        joined = torch.cat([shared, own], dim=-1)
        return joined[:, 0], joined[:, 1].exp()

    @property
    def mean_of_log(self) -> Tensor:
        """E[log z] = half the sum of the factors' means."""
        return self._moments[0].sum(1) / 2

    @property
    def variance_of_log(self) -> Tensor:
        """Var[log z] = a quarter of the sum of the factors' variances."""
        return self._moments[1].sum(1) / 4

    @property
    def score(self) -> Tensor:
        """-log mode of z = Var[log z] - E[log z]."""
        return (self.variance_of_log - self.mean_of_log).detach()

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """A draw that is differentiable in phi. All gates of a group share the noise of s."""
        mean, variance = self._moments
        shape = (2, len(mean))
        noise = torch.randn(shape, generator=generator, dtype=mean.dtype, device=mean.device)
        first = torch.searchsorted(self.group_of, self.group_of)  # the first gate of each group
        shared = torch.sqrt(variance[:, :UNIT_A].sum(1)) * noise[0][first]
        own = torch.sqrt(variance[:, UNIT_A:].sum(1)) * noise[1]
        log_z = (mean.sum(1) + shared + own) / 2
        return log_z.clamp(max=LARGEST_EXPONENT).exp()

    def kept_value(self) -> Tensor:
        """E[z] = exp(E[log z] + Var[log z] / 2)."""
        with torch.no_grad():
            exponent = self.mean_of_log + self.variance_of_log / 2
            return exponent.clamp(max=LARGEST_EXPONENT).exp()


@dataclass(frozen=True)
class Horseshoe(GateFamily):
    """The family of half-Cauchy scales, one for each unit times one for its group.

    Args:
        threshold: The initial threshold of -log mode, above which a gate is pruned.
        group_of: The number of each gate's group. ``within`` sets it.

    Raises:
        TypeError: When called, ``group_of`` is not set.

    Example:
        >>> import torch
        >>> from l0arm.gates import Horseshoe
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
                "horseshoe gates share a scale within a group; pass the group of each gate with "
                "Horseshoe().within(group_of)"
            )
        return HorseshoeGates(phi, self.group_of)

    def initial(self, mean: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The same start for all gates but for a small spread, whatever the mean."""
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
