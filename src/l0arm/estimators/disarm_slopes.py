"""DisARM with straight-through slopes of earlier steps as a linear control variate.

DisARM: Dong, Mnih, Tucker, 2020 (``disarm.py``). Straight-through: Bengio, Leonard, Courville, 2013
(``straight_through.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import NoiseEstimator, is_finite_number
from l0arm.estimators._memory import Memory
from l0arm.estimators._relaxation import slope_of
from l0arm.estimators._surrogate import (
    antithetic_loss,
    antithetic_pair,
    equal_draws,
    loss_of,
    probabilities,
    surrogate,
)


@dataclass(frozen=True)
class DisARMSlopes(NoiseEstimator):
    """DisARM of ``f(z) - G.z``, plus the exact ``G pi (1 - pi)``.

    G is a moving mean of df/dz at the draws of earlier steps. It does not depend on the present
    draw, so the estimate is unbiased, whereas straight-through itself is not. Two evaluations of f
    and one more backward pass. Closed units must be computed: the first evaluation runs masked, in
    the time of the dense network.

    Args:
        decay: The share of the past in the moving mean.

    Raises:
        ValueError: ``decay`` is not in [0, 1).

    Example:
        >>> import torch
        >>> from l0arm.estimators import DisARMSlopes
        >>> estimator, probs = DisARMSlopes(), torch.tensor([0.3, 0.5], requires_grad=True)
        >>> for _ in range(2):  # from the second step on without noise: the loss is linear
        ...     probs.grad = None
        ...     estimator(lambda z: z @ torch.tensor([1.0, 5.0]), probs).backward()
        >>> probs.grad
        tensor([1., 5.])
    """

    decay: float = 0.9
    state: Memory = field(init=False, compare=False, repr=False)
    forwards = 2
    backwards = 2
    drops = False

    def __post_init__(self) -> None:
        if not (is_finite_number(self.decay) and 0.0 <= self.decay < 1.0):
            raise ValueError(
                "decay is the share of the past in a moving mean and must lie in [0, 1); got "
                f"{self.decay!r}"
            )
        steps = torch.zeros((), dtype=torch.int64)
        object.__setattr__(self, "state", Memory(slope=torch.zeros(0), steps=steps))

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        value, s, slope = self._estimate(f, gates, self.noise(probabilities(gates), generator))
        if torch.is_grad_enabled():
            state = self.state
            state["steps"] = state["steps"] + 1
            rate = max(1 / int(state["steps"]), 1 - self.decay)  # at first the plain mean
            before = self._slope(slope)
            state["slope"] = before + rate * (slope - before)
        return surrogate(value, s, gates)

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        """f(z) with the estimate attached, for given noise and the present slopes."""
        value, s, _ = self._estimate(f, gates, u)
        return surrogate(value, s, gates)

    def _slope(self, like: Tensor) -> Tensor:
        """G, which is 0 before the first step."""
        known = self.state["slope"]
        return known.to(like) if known.numel() == like.numel() else torch.zeros_like(like)

    def _estimate(
        self, f: Objective, gates: Gates | Tensor, u: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """f(z) with its graph, the estimate in the logit, and df/dz."""
        probs = probabilities(gates)
        pi = probs.detach()
        z, z_anti = antithetic_pair(u, probs)
        leaf = z.clone().requires_grad_()
        value = f(leaf)  # first, and with its graph: it also trains the weights
        known = self._slope(pi)
        other = loss_of(value) if equal_draws(z, z_anti) else antithetic_loss(f, z_anti)
        change = loss_of(value) - other - known @ (z - z_anti)
        s = change / 2 * (z - z_anti) * torch.maximum(pi, 1 - pi) + known * pi * (1 - pi)
        return value, s, slope_of(value, leaf).detach()
