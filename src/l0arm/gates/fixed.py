"""Gates that are not random: 1 until a method closes them.

Methods that choose units by their weights (magnitude, proximal steps) write phi themselves. It is
saved, compacted and counted like any other phi.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import GateFamily, Gates


@dataclass(frozen=True)
class FixedGates(Gates):
    """``z = phi``, and phi is 0 or 1.

    Attributes:
        phi: The gates themselves.

    Example:
        >>> import torch
        >>> from l0arm.gates import Fixed
        >>> Fixed()(torch.tensor([1.0, 0.0])).sample()
        tensor([1., 0.])
    """

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
        """phi itself. tau is not used."""
        return self.phi.detach().clone()

    def kept_value(self) -> Tensor:
        """phi itself: a closed gate has no other value."""
        return self.phi.detach().clone()


@dataclass(frozen=True)
class Fixed(GateFamily):
    """The family ``z = phi``, for methods that close units themselves. All gates start open.

    Example:
        >>> import torch
        >>> from l0arm.gates import Fixed
        >>> Fixed().initial(torch.tensor([0.8, 0.5]))
        tensor([1., 1.])
    """

    def __call__(self, phi: Tensor) -> FixedGates:
        return FixedGates(phi)

    def initial(self, mean: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """All gates open, whatever the mean."""
        return torch.ones_like(mean)
