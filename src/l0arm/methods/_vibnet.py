"""VIBNet: compression by a variational information bottleneck.

Dai, Zhu, Guo, Wipf, "Compressing Neural Networks using the Variational Information Bottleneck",
2018. Every unit is multiplied by z ~ N(mu, sigma^2), and its prior N(0, xi) has the best xi, which
is mu^2 + sigma^2. What a unit then costs is an upper bound of the information that it carries on.
"""

from __future__ import annotations

from torch import Tensor

from l0arm.contracts import Method, Stage
from l0arm.estimators import Pathwise
from l0arm.gates import Gaussian, GaussianGates
from l0arm.gates.threshold import checked_threshold
from l0arm.methods.stages import warmed_up
from l0arm.penalties import GateKL, Strength
from l0arm.penalties.kl import bottleneck_kl

THRESHOLD = 0.0  # of log alpha, as in the published code: a unit with more noise than signal goes


def vibnet(lam: Strength, *, threshold: float = THRESHOLD, warm_up: float = 0.0) -> Method:
    """Minimise E[data loss] + lam sum over units of log(1 + mu^2 / sigma^2) / 2.

    Units with log(sigma^2 / mu^2) above the threshold are pruned. The published code draws noise
    for every example; here one draw serves the batch, as for all gates.

    Args:
        lam: The strength in the mean loss: one number, or one per group. The published objective
            multiplies the data loss by the number of layers L instead, so its gamma is ``lam`` L.
            It also multiplies the price of a filter by the size of its map.
        threshold: Of log(sigma^2 / mu^2).
        warm_up: The share of the epochs in which the penalty grows from 0 to ``lam``.

    Returns:
        The method, for ``sparsify(model, method=...)``.

    Raises:
        ValueError: An option is out of range.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 4, 2)), method="vibnet", lam=1e-3)
        >>> float(gated.gates.open_probability.sum())
        10.0
    """
    return Method(
        "vibnet",
        Gaussian(checked_threshold(threshold)),
        Pathwise(),
        (GateKL(lam, divergence),),
        stages=(Stage("train", 1.0, penalty=warmed_up(warm_up)),),
    )


def divergence(gates: GaussianGates) -> Tensor:
    """KL(N(mu, sigma^2) || N(0, mu^2 + sigma^2)) of every gate."""
    return bottleneck_kl(gates.mu, gates.log_variance)
