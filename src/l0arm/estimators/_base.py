"""Base classes of the estimators of binary draws, and what several of them share."""

from __future__ import annotations

import math
from abc import abstractmethod
from numbers import Real
from typing import TypeGuard

import torch
from torch import Tensor

from l0arm.contracts import Estimator, Gates, Objective
from l0arm.estimators._surrogate import (
    antithetic_loss,
    equal_draws,
    loss_of,
    probabilities,
    uniform_like,
)


class BinaryEstimator(Estimator):
    """An estimator for gates that are 0 or 1. Unbiased unless a subclass says otherwise."""

    takes = "binary"

    @property
    def unbiased(self) -> bool:
        """Whether the mean of the estimate is the gradient."""
        return True


class NoiseEstimator(BinaryEstimator):
    """An estimator whose estimate is a function of one tensor of noise.

    Calling it draws the noise and evaluates ``at``. Tests call ``at`` with noise of their choice.
    """

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        return self.at(f, gates, self.noise(probabilities(gates), generator))

    def noise(self, probs: Tensor, generator: torch.Generator | None) -> Tensor:
        """u ~ Uniform(0, 1), one number per gate."""
        return uniform_like(probs, generator)

    @abstractmethod
    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        """f(z) with the estimate attached, for given noise."""


class SeveralDraws(NoiseEstimator):
    """An estimator with n draws of all gates. Each draw is the baseline of the others.

    Subclasses are dataclasses with a field ``samples``. Noise and draws have one row per draw.
    """

    samples: int

    def __post_init__(self) -> None:
        if not isinstance(self.samples, int) or self.samples < 2:
            raise ValueError(
                f"samples must be an integer >= 2, got {self.samples!r}; 2 costs what ARM does, "
                "and 'reinforce' or 'ar' need one draw only"
            )

    @property
    def forwards(self) -> int:
        """One evaluation of f per draw."""
        return self.samples

    def noise(self, probs: Tensor, generator: torch.Generator | None) -> Tensor:
        """u ~ Uniform(0, 1), one row per draw."""
        return uniform_like(probs.expand(self.samples, -1), generator)


def losses_of(f: Objective, draws: Tensor) -> tuple[Tensor, Tensor]:
    """f at the first draw with its graph, and the losses at all draws (rows) without one.

    A draw that equals the first is not evaluated again.
    """
    first, *others = draws.unbind(0)
    value = f(first)  # first, and with its graph: it also trains the weights
    losses = [loss_of(value)]
    for z in others:
        losses.append(losses[0] if equal_draws(first, z) else antithetic_loss(f, z))
    return value, torch.stack([loss.reshape(()) for loss in losses])


def covariance(losses: Tensor, draws: Tensor, pi: Tensor) -> Tensor:
    """``1/(n-1) sum_i (f_i - mean f)(z_i - pi)``: each draw has the others' mean as its baseline.

    For independent draws its expectation is dE[f]/dlogit(pi).
    """
    centred = (losses - losses.mean()).to(pi.dtype)
    return centred @ (draws - pi) / (len(losses) - 1)


def is_finite_number(value: object) -> TypeGuard[float]:
    """Whether an option is a number, and neither infinite nor NaN.

    >>> [is_finite_number(value) for value in (0.5, 2, float("nan"), "0.5", None)]
    [True, True, False, False, False]
    """
    return isinstance(value, Real) and math.isfinite(value)
