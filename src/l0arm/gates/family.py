"""What the library asks of a family of gates, whatever its distribution."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Gates(Protocol):
    """All gates of a network at one value of phi."""

    @property
    def phi(self) -> Tensor: ...

    @property
    def probs(self) -> Tensor:
        """pi = g(phi) with its graph: what the estimators hang their gradient on."""
        ...

    @property
    def open_probability(self) -> Tensor:
        """P(z != 0): what the penalties charge for."""
        ...

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One draw of z."""
        ...

    def deterministic(self, tau: Tensor | float) -> Tensor:
        """z-bar, the gates of the network at test time; tau = 0 takes no gate that could stay."""
        ...


class GateFamily(Protocol):
    """Turns phi into gates, and a keep probability into an initial phi."""

    def __call__(self, phi: Tensor, /) -> Gates: ...

    def initial(self, mean: Tensor, generator: torch.Generator | None = None) -> Tensor: ...
