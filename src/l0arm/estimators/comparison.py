"""Bias, variance and cost of an estimator, measured on a problem."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l0arm.estimators.problems import Quadratic, loss_under, quadratic, stages
from l0arm.estimators.protocol import Estimator, Objective

__all__ = ["Measured", "Quadratic", "loss_under", "measure", "quadratic", "stages"]


@dataclass(frozen=True)
class Measured:
    """Many estimates of dE[f]/dlogit(pi), and what they cost."""

    estimates: Tensor = field(repr=False)  # a row for each draw, float64
    seconds: float  # for one estimate, with its backward
    evaluations: float  # of f, for one estimate

    @property
    def mean(self) -> Tensor:
        """The mean estimate, per gate."""
        return self.estimates.mean(0)

    @property
    def standard_error(self) -> Tensor:
        """Of the mean, per gate."""
        return self.estimates.std(0) / math.sqrt(len(self.estimates))

    @property
    def total_variance(self) -> float:
        """``sum_j Var(s_j)``."""
        return float(self.estimates.var(0).sum())

    @property
    def total_variance_error(self) -> float:
        """The standard error of the total variance."""
        squared = (self.estimates - self.mean).square().sum(1)  # its mean is the total variance
        return float(squared.std() / math.sqrt(len(squared)))

    def bias(self, exact: Tensor) -> Tensor:
        """The mean less the gradient, per gate."""
        return self.mean - exact

    def z_scores(self, exact: Tensor) -> Tensor:
        """The bias in standard errors, normal for an unbiased estimator and many draws.

        Where no draw moved a gate (rare near pi = 0 and 1) it is infinite: take more draws.
        """
        bias = self.bias(exact)
        rounding = 1e-12 * (1 + exact.abs())
        return torch.where(bias.abs() < rounding, 0.0, bias / self.standard_error)

    def relative_bias(self, exact: Tensor) -> float:
        """``|mean - gradient| / |gradient|``, noise of the mean included."""
        return float(self.bias(exact).norm() / exact.norm())


def measure(
    estimator: Estimator,
    f: Objective,
    probs: Tensor,
    draws: int = 1000,
    generator: torch.Generator | None = None,
    warmup: int = 0,
) -> Measured:
    """Take ``draws`` estimates at the same probabilities.

    ``warmup`` estimates before them are thrown away: they fill a baseline or tune a control
    variate. What the estimator remembers meanwhile is forgotten; it is left as it was.

    >>> from l0arm.estimators import DisARM
    >>> problem, pi = quadratic(bits=4), torch.full((4,), 0.5, dtype=torch.float64)
    >>> found = measure(DisARM(), problem, pi, 100, torch.Generator().manual_seed(0))
    >>> found.evaluations, bool(found.z_scores(problem.logit_gradient(pi)).abs().max() < 4)
    (2.0, True)
    """
    if draws < 2:
        raise ValueError(f"a variance takes at least 2 draws; got draws={draws}")
    estimator = copy.deepcopy(estimator)
    counted = _Counted(f)
    for _ in range(warmup):
        _estimate(estimator, counted, probs, generator)
    counted.calls, start = 0, time.perf_counter()
    rows = [_estimate(estimator, counted, probs, generator) for _ in range(draws)]
    seconds = (time.perf_counter() - start) / draws
    return Measured(torch.stack(rows).double(), seconds, counted.calls / draws)


class _Counted:
    def __init__(self, f: Objective) -> None:
        self.f, self.calls = f, 0

    def __call__(self, z: Tensor) -> Tensor:
        self.calls += 1
        return self.f(z)


def _estimate(
    estimator: Estimator, f: Objective, probs: Tensor, generator: torch.Generator | None
) -> Tensor:
    """One estimate; it is hung on pi as dE/dpi, so pi (1 - pi) turns it back."""
    leaf = probs.detach().clone().requires_grad_()
    value = estimator(f, leaf, generator)
    (per_pi,) = torch.autograd.grad(value, leaf)
    return per_pi * (probs * (1 - probs)).detach()
