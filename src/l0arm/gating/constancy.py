"""A warning for an objective that has one and the same value at all gates."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

PATIENCE = 50  # evaluations with one and the same value until the warning


class ConstantObjective(UserWarning):
    """The objective had the same value for all masks so far: there is nothing to learn from."""


class Constancy:
    """Watches the values of an objective and warns once if they never change.

    Evaluations at one and the same draw prove nothing, and do not count.

    Example:
        >>> watch = Constancy()
        >>> for step in range(3):
        ...     watch.note(0.5, torch.tensor([float(step)]))
        >>> watch.count
        3
    """

    def __init__(self) -> None:
        self.count, self.first, self.constant = 0, math.nan, True
        self._draw: Tensor | None = None

    def note(self, value: float, z: Tensor, *, stacklevel: int = 2) -> None:
        """One more value, at the gates z."""
        if not self.constant:
            return
        if self.count == 0:
            self.first = value
        elif self._draw is not None and torch.equal(z, self._draw):
            return
        self._draw = z.detach().clone()
        self.count += 1
        self.constant = value == self.first
        if self.constant and self.count == PATIENCE:
            warnings.warn(
                f"the objective was {value} in all of its {PATIENCE} evaluations; there is nothing "
                "to learn from. Does it use the masks?",
                ConstantObjective,
                stacklevel=stacklevel + 1,
            )
