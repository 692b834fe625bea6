"""Sparse VD: variational dropout with a rate for every weight.

Molchanov, Ashukha, Vetrov, "Variational Dropout Sparsifies Deep Neural Networks", 2017.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Extra, Gates, Method, Stage
from l0arm.estimators import Deterministic
from l0arm.gates import Fixed
from l0arm.gates.threshold import checked_threshold
from l0arm.gating import Gated
from l0arm.methods.noise import WeightNoise
from l0arm.methods.stages import Ramp
from l0arm.methods.weights import alive_units
from l0arm.penalties.kl import log_uniform_kl
from l0arm.penalties.strength import single
from l0arm.precision import at_least_float32

INITIAL = -10.0  # log sigma^2
BOUND = 8.0  # of |log alpha|
TINY = 1e-8


def sparse_vd(
    lam: float,
    *,
    threshold: float = 3.0,
    warm_up: tuple[float, float] | list[float] = (0.025, 0.1),
) -> Method:
    """Minimise E[data loss] + lam sum_w KL, where every weight has noise N(0, sigma^2).

    Weights with log alpha = log(sigma^2 / theta^2) above the threshold are set to 0, once the
    penalty has its full weight. A unit without weights is closed.

    Args:
        lam: The strength. The published one is 1/N.
        threshold: Of log alpha.
        warm_up: The two points of the training, as shares of it, between which the penalty grows
            from 0 to ``lam``.

    Returns:
        The method, for ``sparsify(model, method=...)``.

    Raises:
        ValueError: An option is out of range.

    Example:
        >>> from l0arm.methods import sparse_vd
        >>> (stage,) = sparse_vd(1 / 60_000, warm_up=(0.0, 0.5)).stages
        >>> stage.penalty(0.25)
        0.5
    """
    lam = single(lam, "sparse-vd")
    if not (isinstance(warm_up, Sequence) and len(warm_up) == 2):
        raise ValueError(
            f"warm_up is two points of the training, such as (0.025, 0.1); got {warm_up!r}"
        )
    return Method(
        "sparse-vd",
        Fixed(),
        Deterministic(),
        (WeightKL(lam),),
        stages=(Stage("train", penalty=Ramp(*warm_up)),),
        after_step=Threshold(checked_threshold(threshold)),
        extras=noise,
    )


def noise(gated: Gated) -> Mapping[str, Extra]:
    """Noise with log sigma^2 = -10 on every weight."""
    return {"noise": WeightNoise(gated, INITIAL)}


def log_alphas(gated: Gated) -> Iterator[tuple[Tensor, Tensor]]:
    """Every weight with its log alpha, clamped to +-8."""
    for weight, log_variance in gated.extra(WeightNoise).log_variances(gated):
        log_alpha = log_variance - torch.log(at_least_float32(weight) ** 2 + TINY)
        yield weight, log_alpha.clamp(-BOUND, BOUND)


@dataclass(frozen=True)
class WeightKL:
    """``lam`` times the divergence of every weight's noise from the log-uniform prior."""

    lam: float

    def __call__(self, gated: Gated, gates: Gates) -> Tensor:
        each = [log_uniform_kl(log_alpha).sum() for _, log_alpha in log_alphas(gated)]
        return self.lam * sum(each[1:], each[0])


@dataclass(frozen=True)
class Threshold:
    """Set weights with log alpha above the threshold to 0, and close units without weights."""

    threshold: float

    def __call__(self, gated: Gated, optimizer: torch.optim.Optimizer) -> None:
        if gated.penalty_weight < 1.0:
            return
        with torch.no_grad():
            for weight, log_alpha in log_alphas(gated):
                weight.mul_(log_alpha <= self.threshold)
            gated.phi.copy_(alive_units(gated))
