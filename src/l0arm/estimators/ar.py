"""Augment-REINFORCE: one evaluation of the loss, more variance (Eq. 10)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import BinaryEstimator
from l0arm.estimators._baseline import baseline, checked_decay, moving_mean, remember
from l0arm.estimators._memory import Memory
from l0arm.estimators._surrogate import (
    Chain,
    antithetic_pair,
    checked_chain,
    loss_of,
    probabilities,
    surrogate,
    uniform_like,
)


@dataclass(frozen=True)
class AR(BinaryEstimator):
    """``f(1[u < g(phi)]) (1 - 2 u)``, Eq. 10, with no baseline, as in the paper.

    With ``decay`` (0.95, say), less a moving mean of the losses of earlier steps: as unbiased, and
    a small part of the variance.

    >>> probs = torch.tensor([0.3], requires_grad=True)
    >>> AR()(lambda z: 2 + 0 * z.sum(), probs, torch.Generator().manual_seed(0)).item()
    2.0
    """

    chain: Chain = "exact"
    decay: float | None = None
    state: Memory | None = field(init=False, compare=False, repr=False, default=None)
    forwards = 1

    @property
    def unbiased(self) -> bool:
        """Not as printed: without g'(phi) the mean is another vector."""
        return self.chain == "exact"

    def __post_init__(self) -> None:
        checked_chain(self.chain)
        if self.decay is not None:
            checked_decay(self.decay)
            object.__setattr__(self, "state", moving_mean())

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        value = self.at(f, gates, uniform_like(probabilities(gates), generator))
        if self.state is not None and self.decay is not None:
            remember(self.state, value, self.decay)
        return value

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        """The estimate for given noise u."""
        z, _ = antithetic_pair(u, probabilities(gates))
        value = f(z)
        loss = loss_of(value) if self.state is None else loss_of(value) - baseline(self.state)
        s = loss * (1 - 2 * u)  # Eq. 10
        return surrogate(value, s, gates, self.chain)
