"""Kullback-Leibler divergences of the Bayesian methods, elementwise, and the penalty they make."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from l0arm.gates import TruncatedLogNormalGates
from l0arm.gates.truncated_log_normal import FAR, A, B, log_series, shortfall
from l0arm.gating import Gated
from l0arm.penalties.strength import Strength, checked, per_gate

# Molchanov, Ashukha, Vetrov 2017, Eq. 14: a fit, within 0.0095 of the divergence on [-8, 8].
K1, K2, K3 = 0.63576, 1.87320, 1.48695


def log_uniform_kl(log_alpha: Tensor) -> Tensor:
    """KL(N(w, alpha w^2) || p(w) ~ 1/|w|), up to a constant chosen so that it tends to 0."""
    return K1 - K1 * torch.sigmoid(K2 + K3 * log_alpha) + F.softplus(-log_alpha) / 2


def standard_normal_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) || N(0, 1))."""
    return (log_variance.exp() + mean**2 - 1 - log_variance) / 2


def bottleneck_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) || N(0, xi)) with the best xi, which is mean^2 + variance.

    This is log(1 + mean^2 / variance) / 2 (Dai, Zhu, Guo, Wipf 2018).
    """
    # softplus(log(mean^2 / variance)) neither overflows nor loses a small ratio.
    tiny = torch.finfo(mean.dtype).tiny
    return F.softplus(torch.log(mean**2 + tiny) - log_variance) / 2


def gamma_kl(mean: Tensor, variance: Tensor, scale: float = 1.0) -> Tensor:
    """KL(LogNormal(mean, variance) || Gamma(1/2, scale))."""
    entropy = (mean + variance.log() + 1 + math.log(2)) / 2
    return torch.exp(mean + variance / 2) / scale + math.log(scale) / 2 - entropy


def inverse_gamma_kl(mean: Tensor, variance: Tensor) -> Tensor:
    """KL(LogNormal(mean, variance) || InverseGamma(1/2, 1)), by 1/x ~ Gamma(1/2, 1)."""
    return gamma_kl(-mean, variance)


def truncated_log_normal_kl(gates: TruncatedLogNormalGates) -> Tensor:
    """KL(q || log-uniform on [e^A, e^B]) of the gates of structured Bayesian pruning.

    log(B - A) - log(2 pi e)/2 - log sigma - log Z - (alpha phi(alpha) - beta phi(beta)) / (2 Z).
    With mu many sigma outside of [A, B] the terms cancel, so a series is used there.
    """
    gates = gates.wide
    far = _outside(gates) > FAR
    near, tail = gates.split(far)
    return math.log(B - A) - torch.where(far, _tail_entropy(tail), _entropy(near))


def _entropy(gates: TruncatedLogNormalGates) -> Tensor:
    """The entropy of log z, in nats."""

    def edge(x: Tensor) -> Tensor:
        """x phi(x) / Z, with the normal density phi, from logarithms."""
        return x * torch.exp(-(x**2) / 2 - math.log(2 * math.pi) / 2 - gates.log_mass)

    low, high = map(edge, gates.edges)
    return math.log(2 * math.pi * math.e) / 2 + gates.log_sigma + gates.log_mass + (low - high) / 2


def _outside(gates: TruncatedLogNormalGates) -> Tensor:
    """The distance of mu from [A, B] in units of sigma, negative inside."""
    alpha, beta = gates.edges
    return torch.maximum(alpha, -beta)


def _tail_entropy(gates: TruncatedLogNormalGates) -> Tensor:
    """The entropy for mu at t sigma outside, where log z is nearly exponential of rate t / sigma.

    log sigma - log t + log P + (1 + (1 - P) / (s P)) / 2, with s = 1/t^2.
    """
    t = _outside(gates)
    s, log_p = 1 / t**2, log_series(t)
    return gates.log_sigma - t.log() + log_p + (1 + shortfall(s) * torch.exp(-log_p)) / 2


@dataclass(frozen=True)
class GateKL:
    """The penalty ``sum over gates of lam KL``, for a divergence that each gate has on its own.

    Args:
        lam: The strength: one number, or one per group.
        divergence: Maps the gates to a tensor with one number per gate.

    Raises:
        ValueError: A strength is negative or not finite.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 4, 2)), method="sbp", lam=0.5)
        >>> penalty = GateKL(0.5, truncated_log_normal_kl)
        >>> torch.equal(penalty(gated, gated.gates), gated.penalty())
        True
    """

    lam: Strength
    divergence: Callable[[Any], Tensor]

    def __post_init__(self) -> None:
        checked(self.lam)

    def __call__(self, gated: Gated, gates: Any) -> Tensor:
        each = self.divergence(gates)
        return (per_gate(self.lam, gated) * each).sum().to(gated.sizes.dtype)
