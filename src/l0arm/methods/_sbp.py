"""SBP: structured Bayesian pruning with log-normal noise (Neklyudov et al. 2017)."""

from __future__ import annotations

import torch

from l0arm.contracts import Method, Stage
from l0arm.estimators.pathwise import Pathwise
from l0arm.gates import TruncatedLogNormal
from l0arm.gates.truncated_log_normal import BOUNDS
from l0arm.gating import Gated
from l0arm.methods.stages import check_shares, never
from l0arm.penalties import GateKL, Strength
from l0arm.penalties.kl import truncated_log_normal_kl


def sbp(lam: Strength, *, pretrain: float = 0.25) -> Method:
    """Minimise E[data loss] + lam KL(q(z) || log-uniform); the published lam is 1/N.

    The noise starts on a network that is trained already: for ``pretrain`` of the epochs the gates
    stay as they are (1, with half a percent of noise); 0 if it is trained when you bring it. Pruned
    are gates with E[z] <= std(z).
    """
    check_shares(pretrain=pretrain)
    before = (Stage("pretrain", pretrain, gate_lr=0.0, penalty=never),) if pretrain else ()
    return Method(
        "sbp",
        TruncatedLogNormal(),
        Pathwise(),
        (GateKL(lam, truncated_log_normal_kl),),
        stages=(*before, Stage("prune", 1 - pretrain)),
        after_step=clamp_phi,
    )


def clamp_phi(gated: Gated, optimizer: torch.optim.Optimizer) -> None:
    """mu and log sigma within [-20, 5], as in the published code."""
    with torch.no_grad():
        gated.phi.clamp_(*BOUNDS)
