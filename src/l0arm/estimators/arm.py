"""Augment-REINFORCE-merge: two antithetic evaluations of the loss (Eq. 7 and Eq. 9)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import BinaryEstimator
from l0arm.estimators._surrogate import (
    Chain,
    antithetic_loss,
    antithetic_pair,
    checked_chain,
    loss_of,
    probabilities,
    surrogate,
    uniform_like,
)


@dataclass(frozen=True)
class ARM(BinaryEstimator):
    """``(f(1[u > g(-phi)]) - f(1[u < g(phi)])) (u - 1/2)``, Eq. 9.

    >>> probs = torch.tensor([0.5, 0.5], requires_grad=True)
    >>> loss = ARM()(lambda z: z.sum(), probs, torch.Generator().manual_seed(0))
    >>> loss.backward()  # probs.grad is now one sample of dE[f]/dprobs = (1, 1)
    """

    chain: Chain = "exact"
    forwards = 2

    @property
    def unbiased(self) -> bool:
        """Not as printed: without g'(phi) the mean is another vector."""
        return self.chain == "exact"

    def __post_init__(self) -> None:
        checked_chain(self.chain)

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        return self.at(f, gates, uniform_like(probabilities(gates), generator))

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        """The estimate for given noise u."""
        z, z_anti = antithetic_pair(u, probabilities(gates))
        value = f(z)  # keeps the graph and runs first: it also trains the weights
        s = (antithetic_loss(f, z, z_anti, value) - loss_of(value)) * (u - 0.5)  # Eq. 9
        return surrogate(value, s, gates, self.chain)
