"""BC-GNJ: Bayesian compression with a group normal-Jeffreys prior (Louizos et al. 2017)."""

from __future__ import annotations

from torch import Tensor

from l0arm.contracts import Method, Stage
from l0arm.estimators.pathwise import Pathwise
from l0arm.gates import Gaussian, GaussianGates
from l0arm.gates.gaussian import THRESHOLD
from l0arm.gates.threshold import checked_threshold
from l0arm.methods.bayesian_compression import ChooseThresholds, NormalKL, clip_first_layer, noise
from l0arm.methods.stages import warmed_up
from l0arm.penalties import GateKL
from l0arm.penalties.kl import log_uniform_kl
from l0arm.penalties.strength import single


def bc_gnj(
    lam: float,
    *,
    threshold: float = THRESHOLD,
    tolerance: float = 0.1,
    held_out: float = 0.05,
    warm_up: float = 0.1,
) -> Method:
    """Minimise E[data loss] + lam KL(q(z, w) || p); the published lam is 1/N.

    A unit has a scale z ~ N(mu, sigma^2) under p(z) ~ 1/|z|, its weights are N(z theta, z^2 s^2)
    under N(0, z^2). Pruned are units with log(sigma^2 / mu^2) above the threshold of their group:
    ``threshold``, until the last tenth of the training finds better ones on images held out.
    """
    lam = single(lam, "bc-gnj")
    return Method(
        "bc-gnj",
        Gaussian(checked_threshold(threshold)),
        Pathwise(),
        (GateKL(lam, divergence), NormalKL(lam)),
        stages=(
            Stage("train", 0.9, penalty=warmed_up(warm_up)),
            Stage("settle", 0.1, enter=ChooseThresholds(tolerance)),
        ),
        after_step=clip_first_layer,
        extras=noise,
        held_out=held_out,
    )


def divergence(gates: GaussianGates) -> Tensor:
    """KL(N(mu, sigma^2) || p(z) ~ 1/|z|), by the same fit as in Sparse VD."""
    return log_uniform_kl(gates.log_alpha)
