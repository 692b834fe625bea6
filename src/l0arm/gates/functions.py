"""Gate functions: they turn a real parameter phi into a probability pi = g(phi) (Sec. 3.1)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class GateFunction(Protocol):
    """A non-decreasing ``g: R -> [0, 1]`` that autograd can differentiate, and its inverse.

    The library never evaluates ``g(-phi)``, so ``g`` need not be antithetic.

    Example:
        >>> from l0arm.gates import GateFunction, HardSigmoid
        >>> isinstance(HardSigmoid(), GateFunction)
        True
    """

    def __call__(self, phi: Tensor, /) -> Tensor: ...

    def inverse(self, pi: Tensor, /) -> Tensor:
        """The phi with ``g(phi) = pi``, by which gates are initialised."""
        ...


@dataclass(frozen=True)
class ScaledSigmoid:
    """``g(phi) = 1 / (1 + exp(-k phi))``, Eq. 11.

    Args:
        k: The scale of phi. The paper uses 7.

    Raises:
        ValueError: ``k`` is not a finite number > 0.

    Example:
        >>> import torch
        >>> from l0arm.gates import ScaledSigmoid
        >>> ScaledSigmoid(k=7)(torch.tensor([0.0, 1.0]))
        tensor([0.5000, 0.9991])
    """

    k: float = 7.0

    def __post_init__(self) -> None:
        _check_scale(self.k)

    def __call__(self, phi: Tensor) -> Tensor:
        return torch.sigmoid(self.k * phi)

    def inverse(self, pi: Tensor) -> Tensor:
        return torch.logit(pi) / self.k


@dataclass(frozen=True)
class HardSigmoid:
    """``g(phi) = min(1, max(0, k phi / 7 + 1/2))``, Eq. 12: exactly 0 and 1 at its ends.

    Args:
        k: The scale of phi. The paper uses 7.

    Raises:
        ValueError: ``k`` is not a finite number > 0.

    Example:
        >>> import torch
        >>> from l0arm.gates import HardSigmoid
        >>> HardSigmoid(k=7)(torch.tensor([-1.0, 0.25, 1.0]))
        tensor([0.0000, 0.7500, 1.0000])
    """

    k: float = 7.0

    def __post_init__(self) -> None:
        _check_scale(self.k)

    def __call__(self, phi: Tensor) -> Tensor:
        return (self.k / 7.0 * phi + 0.5).clamp(0.0, 1.0)

    def inverse(self, pi: Tensor) -> Tensor:
        return (pi - 0.5) * (7.0 / self.k)


@dataclass(frozen=True)
class CustomGate:
    """Any non-decreasing callable as a gate function. Its inverse is found by bisection.

    Args:
        function: g, differentiable by autograd, with values in [0, 1].
        low: The smallest phi that ``inverse`` may return.
        high: The largest.

    Raises:
        ValueError: ``function`` leaves [0, 1] or, in ``inverse``, does not reach a probability.

    Example:
        >>> import torch
        >>> from l0arm.gates import CustomGate
        >>> gumbel = CustomGate(lambda phi: torch.exp(-torch.exp(-phi)))  # not antithetic
        >>> gumbel.inverse(torch.tensor(0.5))
        tensor(0.3665)
    """

    function: Callable[[Tensor], Tensor]
    low: float = -50.0
    high: float = 50.0

    def __post_init__(self) -> None:
        with torch.no_grad():
            values = self.function(torch.linspace(self.low, self.high, 401, dtype=torch.float64))
        if not bool(((values >= 0) & (values <= 1)).all()):
            raise ValueError(
                f"g must give probabilities, but it reaches from {float(values.min()):.3g} to "
                f"{float(values.max()):.3g} for phi in [{self.low:g}, {self.high:g}]; clamp it to "
                "[0, 1]"
            )

    def __call__(self, phi: Tensor) -> Tensor:
        return self.function(phi)

    def inverse(self, pi: Tensor) -> Tensor:
        with torch.no_grad():
            target = pi.double()
            low = torch.full_like(target, self.low)
            high = torch.full_like(target, self.high)
            reach = self.function(torch.stack([low, high]))
            if not bool(((reach[0] <= target) & (target <= reach[1])).all()):
                raise ValueError(
                    f"g reaches only [{float(reach[0].min()):.3g}, {float(reach[1].max()):.3g}] "
                    f"for phi in [{self.low:g}, {self.high:g}], but a probability of "
                    f"{float(pi.min()):.3g} to {float(pi.max()):.3g} is needed; "
                    "pass CustomGate(g, low=..., high=...) with a wider range, "
                    "and check that g does not decrease"
                )
            for _ in range(100):  # halves the bracket down to the last bit of float64
                middle = (low + high) / 2
                below = self.function(middle) < target
                low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return ((low + high) / 2).to(pi.dtype)


def as_gate_function(g: GateFunction | Callable[[Tensor], Tensor]) -> GateFunction:
    """``g`` itself if it has an ``inverse``, else a ``CustomGate`` of it."""
    return g if isinstance(g, GateFunction) else CustomGate(g)


def _check_scale(k: float) -> None:
    if not (math.isfinite(k) and k > 0):
        raise ValueError(
            f"k scales phi and must be a finite number > 0, got {k!r}; the paper uses 7"
        )
