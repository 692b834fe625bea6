"""Bitflip-1: one gate, drawn at random, is flipped; only it gets a gradient in this step.

Kunes, Yin, Land, Haviv, Pe'er, Tavare, "Gradient Estimation for Binary Latent Variables via
Gradient Variance Clipping", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import BinaryEstimator
from l0arm.estimators._flips import chosen, difference
from l0arm.estimators._relaxation import live
from l0arm.estimators._surrogate import (
    antithetic_pair,
    probabilities,
    surrogate,
    uniform_like,
)


@dataclass(frozen=True)
class Bitflip(BinaryEstimator):
    """``(f(z | z_i = 1) - f(z | z_i = 0)) pi_i (1 - pi_i) / q_i`` for the one gate i ~ q.

    ``q="variance"``: in proportion to pi (1 - pi), so that open questions are asked more often.
    ``q="uniform"``: all gates that are not saturated alike.

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

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        probs = probabilities(gates).detach()
        u = uniform_like(probs, generator)
        return self.at(f, gates, u, uniform_like(probs.new_zeros(()), generator))

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor, w: Tensor) -> Tensor:
        """The estimate for given noise u of the draw and w of the choice."""
        probs = probabilities(gates)
        pi = probs.detach()
        z, _ = antithetic_pair(u, probs)
        value = f(z)
        variance = pi * (1 - pi)
        weights = torch.where(live(pi), variance if self.q == "variance" else 1.0, 0.0)
        s = torch.zeros_like(pi)
        if bool(weights.any()):  # else every gate is settled: there is no gradient to estimate
            i = chosen(weights, w)
            s[i] = difference(f, z, value, i) * variance[i] * weights.sum() / weights[i]
        return surrogate(value, s, gates)
