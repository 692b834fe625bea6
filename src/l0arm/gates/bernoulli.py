"""Bernoulli gates: z is exactly 0 or 1, and open with probability pi = g(phi) (Eq. 5, 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from l0arm.contracts import GateFamily, Gates
from l0arm.gates.functions import GateFunction, ScaledSigmoid, as_gate_function

SpreadOf = Literal["pi", "logit"]
INITIAL_SPREAD = 0.01  # Sec. 5.1: g(phi) ~ N(mean, 0.01)


@dataclass(frozen=True)
class BernoulliGates(Gates):
    """Independent gates ``z ~ Ber(pi)``.

    Attributes:
        phi: The trained parameters, one per gate.
        pi: g(phi), with its graph to phi.

    Example:
        >>> import torch
        >>> from l0arm.gates import Bernoulli, HardSigmoid
        >>> Bernoulli(HardSigmoid())(torch.tensor([-0.25, 0.25])).deterministic(0.5)
        tensor([0.0000, 0.7500])
    """

    pi: Tensor

    @property
    def probs(self) -> Tensor:
        """pi = g(phi)."""
        return self.pi

    @property
    def open_probability(self) -> Tensor:
        """P(z != 0) = pi."""
        return self.probs

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """``1[u < g(phi)]``, Eq. 8."""
        pi = self.probs.detach()
        u = torch.rand(pi.shape, generator=generator, dtype=pi.dtype, device=pi.device)
        return (u < pi).to(pi.dtype)

    def deterministic(self, tau: Tensor | float) -> Tensor:
        """``z-bar = g(phi) if g(phi) > tau else 0``, Eq. 14: E[z] of Eq. 13, thresholded."""
        pi = self.probs.detach()  # Eq. 13
        return torch.where(pi > tau, pi, 0.0)  # Eq. 14

    def kept_value(self) -> Tensor:
        """E[z] = pi, Eq. 13."""
        return self.pi.detach().clone()


@dataclass(frozen=True)
class Bernoulli(GateFamily):
    """The family ``z ~ Ber(g(phi))`` for any gate function g.

    Args:
        g: A gate function, or any non-decreasing callable with values in [0, 1].
        spread_of: What has a standard deviation of 0.01 at the start: ``"pi"``, as Sec. 5.1 reads,
            or ``"logit"``, the logit of pi, as in the authors' code (k phi of their sigmoid).

    Raises:
        TypeError: ``g`` is not a function (a class, for example).
        ValueError: ``spread_of`` is neither.

    Example:
        >>> import torch
        >>> from l0arm.gates import Bernoulli, ScaledSigmoid
        >>> family = Bernoulli(ScaledSigmoid(k=7))
        >>> phi = family.initial(torch.full((3,), 0.8), generator=torch.Generator().manual_seed(0))
        >>> family(phi).probs
        tensor([0.8154, 0.7971, 0.7782])
    """

    g: GateFunction | Callable[[Tensor], Tensor] = ScaledSigmoid()
    spread_of: SpreadOf = "pi"

    def __post_init__(self) -> None:
        if self.spread_of not in ("pi", "logit"):
            raise ValueError(f"spread_of must be 'pi' or 'logit'; got {self.spread_of!r}")
        if isinstance(self.g, type) or not callable(self.g):
            raise TypeError(
                f"gate must be a function of phi, got {self.g!r}; write e.g. HardSigmoid(k=7)"
            )

    def __call__(self, phi: Tensor) -> BernoulliGates:
        return BernoulliGates(phi, self.g(phi))

    def initial(self, mean: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """phi such that g(phi), or its logit, has a spread of 0.01, by the inverse of g.

        g(phi) is clamped to [mean / 2, (1 + mean) / 2], so that no gate starts saturated.
        """
        eps = torch.finfo(mean.dtype).eps
        mean = mean.clamp(eps, 1 - eps)  # a mean that rounds to 0 or 1 would make phi infinite
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
        noise = INITIAL_SPREAD * noise.to(mean.device)
        pi = mean + noise if self.spread_of == "pi" else torch.sigmoid(torch.logit(mean) + noise)
        pi = torch.minimum(torch.maximum(pi, mean / 2), (1 + mean) / 2)
        return as_gate_function(self.g).inverse(pi)
