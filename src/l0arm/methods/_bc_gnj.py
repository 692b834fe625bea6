"""BC-GNJ: Bayesian compression with a group normal-Jeffreys prior.

Louizos, Ullrich, Welling, "Bayesian Compression for Deep Learning", 2017.
"""

from __future__ import annotations

from torch import Tensor

from l0arm.contracts import Method
from l0arm.gates import Gaussian, GaussianGates
from l0arm.gates.gaussian import THRESHOLD
from l0arm.gates.threshold import checked_threshold
from l0arm.methods.bayesian_compression import compression_method
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
    """Minimise E[data loss] + lam KL(q(z, w) || p), with p(z) ~ 1/|z|.

    A unit has a scale z ~ N(mu, sigma^2), and its weights are N(z theta, z^2 s^2) under N(0, z^2).
    Units with log(sigma^2 / mu^2) above the threshold of their group are pruned. In the last tenth
    of the training, the stage ``settle``, the thresholds are fixed at values found by validation.

    Args:
        lam: The strength. The published one is 1/N.
        threshold: The threshold of all groups before that stage.
        tolerance: How many points of accuracy a group's threshold may cost in the validation.
        held_out: The share of the training images that are held out for the validation.
        warm_up: The share of the first nine tenths in which the penalty grows from 0 to ``lam``.

    Returns:
        The method, for ``sparsify(model, method=...)``.

    Raises:
        ValueError: An option is out of range.

    Example:
        >>> from l0arm.methods import bc_gnj
        >>> [(stage.name, stage.share) for stage in bc_gnj(1 / 60_000).stages]
        [('train', 0.9), ('settle', 0.1)]
    """
    lam = single(lam, "bc-gnj")
    return compression_method(
        "bc-gnj",
        Gaussian(checked_threshold(threshold)),
        GateKL(lam, divergence),
        lam,
        tolerance=tolerance,
        held_out=held_out,
        warm_up=warm_up,
    )


def divergence(gates: GaussianGates) -> Tensor:
    """KL(N(mu, sigma^2) || p(z) ~ 1/|z|), by the same fit as in Sparse VD."""
    return log_uniform_kl(gates.log_alpha)
