"""Gates that are not random: 1 until a method closes them.

Methods that find units by their weights (magnitude, proximal steps) write phi themselves; it is
saved, compacted and counted as any other phi.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import GateFamily, Gates


@dataclass(frozen=True)
class FixedGates(Gates):
    """``z = phi``, and phi is 0 or 1."""

    @property
    def probs(self) -> Tensor:
        """phi, without a graph: nothing is learned by gradient."""
        return self.phi.detach()

    @property
    def open_probability(self) -> Tensor:
        return self.phi.detach()

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.phi.detach().clone()

    def deterministic(self, tau: Tensor | float) -> Tensor:
        """phi itself: there is nothing to threshold."""
        return self.phi.detach().clone()

    def kept_value(self) -> Tensor:
        """phi itself: a closed gate has no other value."""
        return self.phi.detach().clone()


@dataclass(frozen=True)
class Fixed(GateFamily):
    """All gates open at the start.

    >>> Fixed().initial(torch.tensor([0.8, 0.5]))
    tensor([1., 1.])
    """

    def __call__(self, phi: Tensor) -> FixedGates:
        return FixedGates(phi)

    def initial(self, mean: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.ones_like(mean)
