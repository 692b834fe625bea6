"""Hard concrete gates: a stretched, clipped relaxation with exact zeros and ones.

Louizos, Welling, Kingma, "Learning Sparse Neural Networks through L0 Regularization", 2018.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import GateFamily, Gates
from l0arm.precision import at_least_float32

INITIAL_SPREAD = 0.01  # of log alpha
RESOLUTION = 1e-6  # u is clamped to [1e-6, 1 - 1e-6], as in the published code


@dataclass(frozen=True)
class HardConcreteGates(Gates):
    """``z = clip(s (zeta - gamma) + gamma, 0, 1)``, ``s = sigmoid((logit u + phi) / beta)``.

    Attributes:
        phi: log alpha, one per gate.
        beta: The temperature.
        gamma: The lower end of the stretched interval, < 0.
        zeta: The upper end, > 1.

    Example:
        >>> import torch
        >>> from l0arm.gates import HardConcrete
        >>> HardConcrete()(torch.tensor([-3.0, 0.0, 3.0])).deterministic(0.5)
        tensor([0.0000, 0.5000, 1.0000])
    """

    beta: float
    gamma: float
    zeta: float
    smooth = True

    @property
    def open_probability(self) -> Tensor:
        """P(z != 0) = sigmoid(phi - beta log(-gamma / zeta))."""
        return torch.sigmoid(self.phi - self.beta * math.log(-self.gamma / self.zeta))

    @property
    def probs(self) -> Tensor:
        """The same as ``open_probability``: draws are not binary, so there is no other one."""
        return self.open_probability

    @property
    def full_probability(self) -> Tensor:
        """P(z = 1) = sigmoid(phi - beta log((1 - gamma) / (zeta - 1)))."""
        return torch.sigmoid(self.phi - self.beta * math.log((1 - self.gamma) / (self.zeta - 1)))

    def at(self, u: Tensor) -> Tensor:
        """z for given noise u, with its graph. A clipped gate has derivative 0."""
        u = u.clamp(RESOLUTION, 1 - RESOLUTION)
        return self._stretched((torch.logit(u) + self.phi) / self.beta)

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """A draw that is differentiable in phi."""
        phi = at_least_float32(self.phi.detach())
        return self.at(
            torch.rand(phi.shape, generator=generator, dtype=phi.dtype, device=phi.device)
        )

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.rsample(generator).detach()

    def deterministic(self, tau: Tensor | float) -> Tensor:
        """``clip(sigmoid(phi) (zeta - gamma) + gamma, 0, 1)``. It has exact zeros without tau."""
        return self._stretched(self.phi.detach())

    def kept_value(self) -> Tensor:
        """z-bar itself: a gate that is 0 has no other value."""
        return self._stretched(self.phi.detach())

    def _stretched(self, logit: Tensor) -> Tensor:
        return (torch.sigmoid(logit) * (self.zeta - self.gamma) + self.gamma).clamp(0.0, 1.0)


@dataclass(frozen=True)
class HardConcrete(GateFamily):
    """The family of hard concrete gates, with the published constants.

    Args:
        beta: The temperature of the concrete distribution.
        gamma: The lower end to which it is stretched before it is clipped at 0.
        zeta: The upper end, before it is clipped at 1.

    Raises:
        ValueError: Not beta > 0, gamma < 0 and zeta > 1.

    Example:
        >>> import torch
        >>> from l0arm.gates import HardConcrete
        >>> HardConcrete()(torch.zeros(1)).open_probability
        tensor([0.8318])
    """

    beta: float = 2 / 3
    gamma: float = -0.1
    zeta: float = 1.1

    def __post_init__(self) -> None:
        if not (self.beta > 0 and self.gamma < 0 and self.zeta > 1):
            raise ValueError(
                "hard concrete gates need beta > 0, gamma < 0 and zeta > 1, else they have no "
                f"exact zeros and ones; got beta={self.beta}, gamma={self.gamma}, zeta={self.zeta}"
            )

    def __call__(self, phi: Tensor) -> HardConcreteGates:
        return HardConcreteGates(phi, self.beta, self.gamma, self.zeta)

    def initial(self, mean: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """``phi ~ N(logit(mean), 0.01)``. ``mean`` is 1 - droprate, which is not P(z != 0)."""
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
        return torch.logit(mean) + INITIAL_SPREAD * noise.to(mean.device)
