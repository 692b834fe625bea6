"""Bitflip-1: one gate, drawn at random, is flipped, and only that gate gets a gradient.

Kunes, Yin, Land, Haviv, Pe'er, Tavare, "Gradient Estimation for Binary Latent Variables via
Gradient Variance Clipping", 2023.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import BinaryEstimator
from l0arm.estimators._relaxation import live
from l0arm.estimators._surrogate import (
    binary_draw,
    loss_of,
    probabilities,
    surrogate,
    uniform_like,
)


class FlipEstimator(BinaryEstimator):
    """An estimator that flips one gate: noise u for the draw, w for the choice of the gate."""

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        probs = probabilities(gates).detach()
        u = uniform_like(probs, generator)
        return self.at(f, gates, u, uniform_like(probs.new_zeros(()), generator))

    @abstractmethod
    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor, w: Tensor) -> Tensor:
        """f(z) with the estimate attached, for given noise."""


@dataclass(frozen=True)
class Bitflip(FlipEstimator):
    """``(f(z | z_i = 1) - f(z | z_i = 0)) pi_i (1 - pi_i) / q_i`` for the one gate i ~ q.

    Two evaluations of f.

    Args:
        q: How the gate is chosen. ``"variance"``: with probability in proportion to pi (1 - pi), so
            that undecided gates are flipped more often. ``"uniform"``: all gates that are not
            saturated are equally likely.

    Raises:
        ValueError: ``q`` is unknown.

    Example:
        >>> import torch
        >>> from l0arm.estimators import Bitflip
        >>> probs = torch.tensor([0.5, 0.5], requires_grad=True)
        >>> noise = torch.tensor([0.3, 0.8]), torch.tensor(0.1)  # z = (1, 0), and gate 0 is flipped
        >>> Bitflip().at(lambda z: z @ torch.tensor([1.0, 5.0]), probs, *noise).backward()
        >>> probs.grad  # 1 / q
        tensor([2., 0.])
    """

    q: Literal["variance", "uniform"] = "variance"
    forwards = 2

    def __post_init__(self) -> None:
        if self.q not in ("variance", "uniform"):
            raise ValueError(f"q must be 'variance' or 'uniform'; got {self.q!r}")

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor, w: Tensor) -> Tensor:
        probs = probabilities(gates)
        pi = probs.detach()
        z = binary_draw(u, probs)
        value = f(z)
        variance = pi * (1 - pi)
        weights = torch.where(live(pi), variance if self.q == "variance" else 1.0, 0.0)
        s = torch.zeros_like(pi)
        if bool(weights.any()):  # otherwise all gates are saturated and the gradient is 0
            i = pick_gate(weights, w)
            s[i] = flip_difference(f, z, value, i) * variance[i] * weights.sum() / weights[i]
        return surrogate(value, s, gates)


def flip_difference(f: Objective, z: Tensor, value: Tensor, gate: int) -> Tensor:
    """``f(z | z_i = 1) - f(z | z_i = 0)``. One of the two is ``value``, the other is evaluated."""
    flipped = z.clone()
    flipped[gate] = 1 - flipped[gate]
    with torch.no_grad():
        change = loss_of(f(flipped)) - loss_of(value)
    return torch.where(z[gate] == 0, change, -change)


def pick_gate(weights: Tensor, w: Tensor) -> int:
    """The gate that a uniform w picks, with probabilities in proportion to the weights.

    >>> pick_gate(torch.tensor([1.0, 0.0, 3.0]), torch.tensor(0.25))
    2
    """
    cumulated = weights.double().cumsum(0)
    position = torch.searchsorted(cumulated, w.double() * cumulated[-1], right=True)
    return int(position.clamp(max=int(weights.nonzero()[-1])))
