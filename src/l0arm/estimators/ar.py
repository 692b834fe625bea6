"""Augment-REINFORCE: one evaluation of the loss, more variance (Eq. 10)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.estimators.protocol import Objective
from l0arm.estimators.surrogate import (
    Chain,
    antithetic_pair,
    checked_chain,
    loss_of,
    probabilities,
    surrogate,
    uniform_like,
)
from l0arm.gates import Gates


@dataclass(frozen=True)
class AR:
    """``f(1[u < g(phi)]) (1 - 2 u)``, Eq. 10, with no baseline, as in the paper.

    >>> probs = torch.tensor([0.3], requires_grad=True)
    >>> AR()(lambda z: 2 + 0 * z.sum(), probs, torch.Generator().manual_seed(0)).item()
    2.0
    """

    chain: Chain = "exact"
    unbiased = True
    forwards = 1
    backwards = 1
    drops = True

    def __post_init__(self) -> None:
        checked_chain(self.chain)

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        return self.at(f, gates, uniform_like(probabilities(gates), generator))

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        """The estimate for given noise u."""
        z, _ = antithetic_pair(u, probabilities(gates))
        value = f(z)
        s = loss_of(value) * (1 - 2 * u)  # Eq. 10
        return surrogate(value, s, gates, self.chain)
