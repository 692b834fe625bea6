"""BC-GHS: Bayesian compression with a group horseshoe prior (Louizos et al. 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from l0arm.contracts import Method, Stage
from l0arm.estimators.pathwise import Pathwise
from l0arm.gates import Horseshoe, HorseshoeGates
from l0arm.gates.horseshoe import S_A, S_B, THRESHOLD, UNIT_A, UNIT_B
from l0arm.gates.threshold import checked_threshold
from l0arm.gating import Gated
from l0arm.methods.bayesian_compression import ChooseThresholds, NormalKL, clip_first_layer, noise
from l0arm.methods.stages import warmed_up
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
    """Minimise E[data loss] + lam KL(q(z, w) || p); the published lam is 1/N.

    A unit has a scale z = s z~ under half-Cauchy priors, s ~ C+(0, scale) for its group and
    z~ ~ C+(0, 1) for itself. Pruned are units with -log mode(z) above the threshold of their group:
    ``threshold``, until the last tenth of the training finds better ones on images held out.
    """
    lam = single(lam, "bc-ghs")
    return Method(
        "bc-ghs",
        Horseshoe(checked_threshold(threshold)),
        Pathwise(),
        (HorseshoeKL(lam, scale), NormalKL(lam)),
        stages=(
            Stage("train", 0.9, penalty=warmed_up(warm_up)),
            Stage("settle", 0.1, enter=ChooseThresholds(tolerance)),
        ),
        after_step=clip_first_layer,
        extras=noise,
        held_out=held_out,
    )


@dataclass(frozen=True)
class HorseshoeKL:
    """``lam`` times the divergence of s_a, s_b once for a group, of a_i, b_i for every gate."""

    lam: float
    scale: float  # b of s ~ C+(0, b), so s_a ~ Gamma(1/2, b^2)

    def __post_init__(self) -> None:
        if not (isinstance(self.scale, Real) and 0 < self.scale < math.inf):
            raise ValueError(
                f"the scale of a half-Cauchy must be > 0, and finite; got {self.scale!r}"
            )

    def __call__(self, gated: Gated, gates: Any) -> Tensor:
        of_units, of_groups = divergences(gates, self.scale)
        first = torch.unique_consecutive(gated.group_of, return_counts=True)[1].cumsum(0)
        starts = torch.cat([first.new_zeros(1), first[:-1]])
        return self.lam * (of_units.sum() + of_groups[starts].sum())


def divergences(gates: HorseshoeGates, scale: float) -> tuple[Tensor, Tensor]:
    """At every gate: the divergence of its own factors, and of its group's."""
    mean, variance = gates.factors
    of_unit = gamma_kl(mean[:, UNIT_A], variance[:, UNIT_A]) + inverse_gamma_kl(
        mean[:, UNIT_B], variance[:, UNIT_B]
    )
    of_group = gamma_kl(mean[:, S_A], variance[:, S_A], scale**2) + inverse_gamma_kl(
        mean[:, S_B], variance[:, S_B]
    )
    return of_unit, of_group
