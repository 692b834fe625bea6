"""L0-HC: hard concrete gates under an L0 penalty.

Louizos, Welling, Kingma, "Learning Sparse Neural Networks through L0 Regularization", 2018.
"""

from __future__ import annotations

import math

import torch

from l0arm.contracts import Method, Penalty
from l0arm.estimators import Pathwise
from l0arm.gates import HardConcrete
from l0arm.gating import Gated
from l0arm.penalties import L0, L2, Strength

LARGEST = math.log(100.0)  # of |log alpha|: P(z != 0) >= 0.047, so the penalty never vanishes


def l0_hc(
    lam: Strength,
    *,
    l2: Strength = 0.0,
    beta: float = 2 / 3,
    gamma: float = -0.1,
    zeta: float = 1.1,
) -> Method:
    """Minimise E[data loss] + lam E||theta||_0 over hard concrete gates, by pathwise gradients.

    Args:
        lam: The strength of the L0 penalty per weight. One number, or one per group.
        l2: The strength of the expected squared L2 norm.
        beta: The temperature of the gates.
        gamma: The lower end of their stretched interval.
        zeta: The upper end.

    Returns:
        The method, for ``sparsify(model, method=...)``.

    Raises:
        ValueError: A strength is negative or not finite, or the constants give no exact zeros.

    Example:
        >>> from l0arm.methods import l0_hc
        >>> l0_hc(0.1 / 60_000).gate
        HardConcrete(beta=0.6666666666666666, gamma=-0.1, zeta=1.1)
    """
    penalties: tuple[Penalty, ...] = (L0(lam),) if l2 == 0.0 else (L0(lam), L2(l2))
    family = HardConcrete(beta, gamma, zeta)
    return Method("l0-hc", family, Pathwise(), penalties, after_step=clamp_phi)


def clamp_phi(gated: Gated, optimizer: torch.optim.Optimizer) -> None:
    """Clamp log alpha to +-log(100), as in the published code."""
    with torch.no_grad():
        gated.phi.clamp_(-LARGEST, LARGEST)
