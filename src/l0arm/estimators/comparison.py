"""Bias, variance and cost of an estimator, measured on a problem."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l0arm.contracts import Estimator, Objective
from l0arm.estimators.bias import Bias, Reference
from l0arm.estimators.problems import Quadratic, loss_under, quadratic, stages

__all__ = [
    "Bias",
    "Measured",
    "Quadratic",
    "Reference",
    "loss_under",
    "measure",
    "quadratic",
    "stages",
]


@dataclass(frozen=True)
class Measured:
    """Many estimates of dE[f]/dlogit(pi), and what they cost; a row for each."""

    estimates: Tensor = field(repr=False)  # float64
    draws: Tensor = field(repr=False)  # where f was evaluated first
    times: Tensor = field(repr=False)  # seconds of the calling thread, backward passes included
    calls: Tensor = field(repr=False)  # evaluations of f

    @property
    def seconds(self) -> float:
        """The median for one estimate, in which a few that were disturbed do not count."""
        return float(self.times.median())

    @property
    def seconds_spread(self) -> float:
        """Half of the range that the middle half of the times is in."""
        low, high = self.times.quantile(torch.tensor([0.25, 0.75], dtype=self.times.dtype))
        return float(high - low) / 2

    @property
    def evaluations(self) -> float:
        """Of f, for one estimate."""
        return float(self.calls.mean())

    @property
    def evaluations_error(self) -> float:
        """The standard error of the evaluations."""
        return float(self.calls.std()) / math.sqrt(len(self.calls))

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
        return float(self._squared.std() / math.sqrt(len(self._squared)))

    def variance_ratio(self, other: Measured) -> tuple[float, float]:
        """The total variance over that of as many other estimates, with its standard error.

        Estimates of the same number may share their noise (a seed): that is counted.
        """
        ratio = self.total_variance / other.total_variance
        apart = self._squared - ratio * other._squared
        return ratio, float(apart.std() / math.sqrt(len(apart)) / other.total_variance)

    @property
    def _squared(self) -> Tensor:
        """Squared distances from the mean, whose mean is the total variance."""
        return (self.estimates - self.mean).square().sum(1)

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

    def relative_bias(self, gradient: Tensor | Reference) -> Bias:
        """``|mean - gradient| / |gradient|``, with the noise of both taken off."""
        reference = gradient if isinstance(gradient, Reference) else Reference(gradient)
        return reference.bias_of(self.estimates, self.draws)


def measure(
    estimator: Estimator,
    f: Objective,
    probs: Tensor,
    draws: int = 1000,
    generator: torch.Generator | None = None,
    warmup: int = 0,
    weights: Iterable[Tensor] = (),
) -> Measured:
    """Take ``draws`` estimates at the same probabilities.

    ``weights`` are what f depends on besides z: a training step derives the loss in them, too, and
    that takes most of its time, so it is part of what an estimate costs.

    ``warmup`` estimates before them are thrown away: they fill a baseline or tune a control
    variate, with noise of their own: the draws that count are the same with and without them.
    What the estimator remembers meanwhile is forgotten; it is left as it was.

    >>> from l0arm.estimators import DisARM
    >>> problem, pi = quadratic(bits=4), torch.full((4,), 0.5, dtype=torch.float64)
    >>> found = measure(DisARM(), problem, pi, 100, torch.Generator().manual_seed(0))
    >>> found.evaluations, bool(found.z_scores(problem.logit_gradient(pi)).abs().max() < 4)
    (2.0, True)
    """
    if draws < 2:
        raise ValueError(f"a variance takes at least 2 draws; got draws={draws}")
    estimator, weights = copy.deepcopy(estimator), tuple(weights)  # parameters() ends after one use
    other = generator and torch.Generator(generator.device)
    if generator and other:
        other.manual_seed(generator.initial_seed() + 1)
    for _ in range(warmup):
        _estimate(estimator, f, probs, other, weights)
    taken = [_taken(estimator, f, probs, generator, weights) for _ in range(draws)]
    rows, first, times, calls = zip(*taken, strict=True)
    return Measured(
        torch.stack(rows).double(),
        torch.stack(first),
        torch.tensor(times, dtype=torch.float64),
        torch.tensor(calls, dtype=torch.float64),
    )


def _taken(
    estimator: Estimator,
    f: Objective,
    probs: Tensor,
    generator: torch.Generator | None,
    weights: Sequence[Tensor],
) -> tuple[Tensor, Tensor, float, int]:
    """An estimate, its first draw, its seconds and its evaluations of f."""
    seen: list[Tensor] = []

    def watched(z: Tensor) -> Tensor:
        seen.append(z.detach())
        return f(z)

    start = time.thread_time()
    estimate = _estimate(estimator, watched, probs, generator, weights)
    return estimate, seen[0], time.thread_time() - start, len(seen)


def _estimate(
    estimator: Estimator,
    f: Objective,
    probs: Tensor,
    generator: torch.Generator | None,
    weights: Sequence[Tensor],
) -> Tensor:
    """One estimate; it is hung on pi as dE/dpi, so pi (1 - pi) turns it back."""
    leaf = probs.detach().clone().requires_grad_()
    value = estimator(f, leaf, generator)
    per_pi, *_ = torch.autograd.grad(value, [leaf, *weights], allow_unused=True)
    return per_pi * (probs * (1 - probs)).detach()
