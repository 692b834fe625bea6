"""BC-GHS: Bayesian compression with a group horseshoe prior.

Louizos, Ullrich, Welling, "Bayesian Compression for Deep Learning", 2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from l0arm.contracts import Gates, Method
from l0arm.gates import Horseshoe, HorseshoeGates
from l0arm.gates.horseshoe import THRESHOLD
from l0arm.gates.threshold import checked_threshold
from l0arm.gating import Gated
from l0arm.methods.bayesian_compression import compression_method
from l0arm.penalties.kl import gamma_kl, inverse_gamma_kl
from l0arm.penalties.strength import single


def bc_ghs(
    lam: float,
    *,
    scale: float = 3.2e-3,
    threshold: float = THRESHOLD,
    tolerance: float = 0.1,
    held_out: float = 0.05,
    warm_up: float = 0.1,
) -> Method:
    """Minimise E[data loss] + lam KL(q(z, w) || p), with half-Cauchy priors.

    A unit has a scale z = s z~, with s ~ C+(0, scale) for its group and z~ ~ C+(0, 1) for itself.
    Units with -log mode(z) above the threshold of their group are pruned. In the last tenth of the
    training, the stage ``settle``, the thresholds are fixed at values found by validation.

    Args:
        lam: The strength. The published one is 1/N.
        scale: The scale of the half-Cauchy prior of a group.
        threshold: The threshold of all groups before that stage.
        tolerance: How many points of accuracy a group's threshold may cost in the validation.
        held_out: The share of the training images that are held out for the validation.
        warm_up: The share of the first nine tenths in which the penalty grows from 0 to ``lam``.

    Returns:
        The method, for ``sparsify(model, method=...)``.

    Raises:
        ValueError: An option is out of range.

    Example:
        >>> from l0arm.methods import bc_ghs
        >>> [(stage.name, stage.share) for stage in bc_ghs(1 / 60_000).stages]
        [('train', 0.9), ('settle', 0.1)]
    """
    lam = single(lam, "bc-ghs")
    return compression_method(
        "bc-ghs",
        Horseshoe(checked_threshold(threshold)),
        HorseshoeKL(lam, scale),
        lam,
        tolerance=tolerance,
        held_out=held_out,
        warm_up=warm_up,
    )


@dataclass(frozen=True)
class HorseshoeKL:
    """``lam`` times the divergence of s_a, s_b once per group, and of a_i, b_i for every gate."""

    lam: float
    scale: float  # b of s ~ C+(0, b), so s_a ~ Gamma(1/2, b^2)

    def __post_init__(self) -> None:
        if not (isinstance(self.scale, Real) and 0 < self.scale < math.inf):
            raise ValueError(
                f"the scale of a half-Cauchy must be > 0, and finite; got {self.scale!r}"
            )

    def __call__(self, gated: Gated, gates: Gates) -> Tensor:
        assert isinstance(gates, HorseshoeGates)
        factors = gates.factors
        of_unit = gamma_kl(*factors.a) + inverse_gamma_kl(*factors.b)
        of_group = gamma_kl(*factors.s_a, self.scale**2) + inverse_gamma_kl(*factors.s_b)
        ends = torch.unique_consecutive(gated.group_of, return_counts=True)[1].cumsum(0)
        first = torch.cat([ends.new_zeros(1), ends[:-1]])  # the first gate of each group
        return self.lam * (of_unit.sum() + of_group[first].sum())
