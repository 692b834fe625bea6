"""L0-HC: hard concrete gates under an L0 penalty (Louizos, Welling, Kingma 2018)."""

from __future__ import annotations

import math

import torch

from l0arm.contracts import Method, Penalty
from l0arm.estimators.pathwise import Pathwise
from l0arm.gates import HardConcrete
from l0arm.gating import Gated
from l0arm.penalties import L0, L2, Strength

LARGEST = math.log(100.0)  # of |log alpha|: so P(z != 0) >= 0.047, and the penalty never vanishes


def l0_hc(
    lam: Strength,
    *,
    l2: Strength = 0.0,
    beta: float = 2 / 3,
    gamma: float = -0.1,
    zeta: float = 1.1,
) -> Method:
    """Minimise E[data loss] + lam E||theta||_0 over hard concrete gates, by pathwise gradients.

    >>> l0_hc(0.1 / 60_000).gate
    HardConcrete(beta=0.6666666666666666, gamma=-0.1, zeta=1.1)
    """
    penalties: tuple[Penalty, ...] = (L0(lam),) if l2 == 0.0 else (L0(lam), L2(l2))
    family = HardConcrete(beta, gamma, zeta)
    return Method("l0-hc", family, Pathwise(), penalties, after_step=clamp_phi)


def clamp_phi(gated: Gated, optimizer: torch.optim.Optimizer) -> None:
    """log alpha within +-log(100), as in the published code."""
    with torch.no_grad():
        gated.phi.clamp_(-LARGEST, LARGEST)
