"""SBP: structured Bayesian pruning with log-normal noise.

Neklyudov, Molchanov, Ashukha, Vetrov, "Structured Bayesian Pruning via Log-Normal Multiplicative
Noise", 2017.
"""

from __future__ import annotations

import torch

from l0arm.contracts import Method, Stage
from l0arm.estimators import Pathwise
from l0arm.gates import TruncatedLogNormal
from l0arm.gates.truncated_log_normal import BOUNDS
from l0arm.gating import Gated
from l0arm.methods.stages import check_shares, never
from l0arm.penalties import GateKL, Strength
from l0arm.penalties.kl import truncated_log_normal_kl


def sbp(lam: Strength, *, pretrain: float = 0.25) -> Method:
    """Minimise E[data loss] + lam KL(q(z) || log-uniform), and prune gates with E[z] <= std(z).

    Args:
        lam: The strength. The published one is 1/N. One number, or one per group.
        pretrain: The share of the epochs in which the network is trained with its initial gates (1,
            with half a percent of noise), before they learn. 0 for a network that is trained
            already.

    Returns:
        The method, for ``sparsify(model, method=...)``.

    Raises:
        ValueError: ``lam`` is negative or not finite, or ``pretrain`` is not in [0, 1).

    Example:
        >>> from l0arm.methods import sbp
        >>> [(stage.name, stage.share) for stage in sbp(1 / 60_000).stages]
        [('pretrain', 0.25), ('prune', 0.75)]
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
    """Clamp mu and log sigma to [-20, 5], as in the published code."""
    with torch.no_grad():
        gated.phi.clamp_(*BOUNDS)
