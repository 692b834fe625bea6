"""The normal distribution far out, where differences of log Phi have no digits left.

``Phi(-t) = phi(t) P(s) / t`` with s = 1/t^2 and P(s) = 1 - s + 3 s^2 - 15 s^3 + ...
"""

from __future__ import annotations

from torch import Tensor

FAR = 30.0  # from here on the terms below leave an error of 1e-15
TERMS = 9


def shortfall(s: Tensor) -> Tensor:
    """``(1 - P(s)) / s = 1 - 3 s + 15 s^2 - ...``, without the cancellation."""
    total = s.new_ones(())
    for odd in range(2 * TERMS - 1, 1, -2):
        total = 1 - odd * s * total
    return total


def log_series(t: Tensor) -> Tensor:
    """log P."""
    s = 1 / t**2
    return (-s * shortfall(s)).log1p()
