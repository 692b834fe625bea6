"""The expectation itself, summed over all 2^V draws (Eq. 6): the reference for the estimators."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import BinaryEstimator
from l0arm.estimators._surrogate import probabilities
from l0arm.precision import at_least_float32


@dataclass(frozen=True)
class Exact(BinaryEstimator):
    """``E[f(z)] = sum_z p(z) f(z)``, Eq. 6. Its value is the expectation, not one f(z).

    Args:
        max_gates: The largest number of gates V that it accepts, since it evaluates f 2^V times.

    Raises:
        ValueError: ``max_gates`` is not an integer >= 1 or, when called, there are more gates.

    Example:
        >>> import torch
        >>> from l0arm.estimators import Exact
        >>> probs = torch.tensor([0.5, 0.25], requires_grad=True)
        >>> loss = Exact()(lambda z: z[0] * z[1], probs)
        >>> loss.backward(); loss.item(), probs.grad
        (0.125, tensor([0.2500, 0.5000]))
    """

    max_gates: int = 16
    forwards = 0  # 2^V: depends on the number of gates
    backwards = 0

    def __post_init__(self) -> None:
        if not isinstance(self.max_gates, int) or self.max_gates < 1:
            raise ValueError(f"max_gates is a number of gates >= 1; got {self.max_gates!r}")

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        probs = probabilities(gates)
        if probs.numel() > self.max_gates:
            raise ValueError(
                f"the exact estimator sums over 2^V draws and takes V <= {self.max_gates} gates, "
                f"got V = {probs.numel()}; use 'disarm' or 'arm', or Exact(max_gates=...)"
            )
        draws = all_draws(probs.numel(), probs)
        weights = torch.where(draws.bool(), probs, 1 - probs).prod(dim=1)  # p(z)
        losses = [at_least_float32(f(z)).reshape(()) for z in draws]
        return (weights * torch.stack(losses)).sum()  # Eq. 6


def all_draws(gates: int, like: Tensor) -> Tensor:
    """The 2^V binary vectors as rows, in the dtype and on the device of ``like``."""
    codes = torch.arange(2**gates, device=like.device)
    return (codes[:, None] >> torch.arange(gates, device=like.device) & 1).to(like.dtype)
