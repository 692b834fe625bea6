"""Oracles for estimators: the expectation by enumeration, and means over all draws."""

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from l0arm.gates import Bernoulli, BernoulliGates, HardSigmoid, ScaledSigmoid

GATES = {
    "sigmoid": ScaledSigmoid(1),
    "sigmoid-7": ScaledSigmoid(7),
    "hard": HardSigmoid(7),
    "not-antithetic": lambda phi: torch.exp(-torch.exp(-phi)),
}
PHI = [-0.3, 0.05, 0.25]


def gates_of(g: Callable[[Tensor], Tensor], phi: list[float] = PHI) -> BernoulliGates:
    return Bernoulli(g)(torch.tensor(phi, dtype=torch.float64, requires_grad=True))


def patterns(rows: int, bits: int) -> list[Tensor]:
    """All binary matrices of that shape."""
    shape = (rows, bits)
    return [
        torch.tensor(flat, dtype=torch.float64).view(shape)
        for flat in product((0, 1), repeat=rows * bits)
    ]


def probability(z: Tensor, pi: Tensor) -> float:
    """Of independent draws, rows of z."""
    return torch.where(z > 0, pi, 1 - pi).prod().item()


def noise_for(z: Tensor, pi: Tensor) -> Tensor:
    """A u with 1[u < pi] = z."""
    return torch.where(z > 0, pi / 2, (1 + pi) / 2).detach()


def expectation(f: Callable[[Tensor], Tensor], pi: Tensor) -> Tensor:
    """E[f(z)], with its graph to pi."""
    total = torch.zeros((), dtype=pi.dtype)
    for z in patterns(1, len(pi)):
        total = total + torch.where(z[0] > 0, pi, 1 - pi).prod() * f(z[0])
    return total


def gradient(f: Callable[[Tensor], Tensor], gates: BernoulliGates) -> Tensor:
    """dE[f]/dphi."""
    return torch.autograd.grad(expectation(f, gates.probs), gates.phi, retain_graph=True)[0]


def in_phi(value: Tensor, gates: BernoulliGates) -> Tensor:
    """The estimate that a value carries."""
    return torch.autograd.grad(value, gates.phi, retain_graph=True)[0]


def hotelling_score(estimates: Tensor, exact: Tensor) -> float:
    """The bias of many estimates (rows) over all gates, in standard deviations of its chi^2.

    With the covariance of the estimates themselves, chi^2 is Hotelling's, an F distribution.
    """
    n, d = estimates.shape
    error, covariance = estimates.mean(0) - exact, torch.cov(estimates.T)
    chi2 = n * error @ torch.linalg.solve(covariance, error)
    m = n - d
    ratio = chi2.item() * m / (d * (n - 1))
    variance = 2 * m**2 * (d + m - 2) / (d * (m - 2) ** 2 * (m - 4))
    return (ratio - m / (m - 2)) / variance**0.5


def smooth(z: Tensor) -> Tensor:
    """Neither linear nor quadratic in any gate, with a slope everywhere."""
    a, b = z.new_tensor([1.0, -1.5, 0.7, 0.4]), z.new_tensor([0.5, 1.0, -2.0, 1.0])
    n = len(z)
    return 2.3 + torch.exp(z @ a[:n]) + torch.sin(z @ b[:n]) ** 2
