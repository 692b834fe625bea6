"""Where to cut g(phi) into closed and open: a fixed tau (Eq. 14), or the valley of its histogram.

The paper leaves a tau that depends on the histogram to future work (Sec. 3.2); this is one.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from l0arm.contracts import Gates

DEFAULT_TAU = 0.5


def finite(threshold: float) -> float:
    """A method's own threshold, which may be any number."""
    if not (isinstance(threshold, Real) and math.isfinite(threshold)):
        raise ValueError(f"threshold must be a finite number; got {threshold!r}")
    return float(threshold)


@dataclass(frozen=True)
class ScoredGates(Gates):
    """Gates that are pruned where a score exceeds a threshold of their own.

    The threshold is the last column of phi: saved with it, but not trained by gradient.
    """

    @property
    @abstractmethod
    def score(self) -> Tensor:
        """What is compared with the threshold. Above it, a gate is pruned."""

    @property
    def thresholds(self) -> Tensor:
        """The threshold of every gate: a view of phi."""
        return self.phi[:, -1]


def valley(pi: Tensor, bins: int = 20) -> float:
    """The middle of the emptiest stretch between the spike of closed and that of open gates.

    With gates on one side of 1/2 only there is no valley, and tau = 1/2.

    >>> valley(torch.tensor([0.01, 0.02, 0.28, 0.31, 0.97, 0.98]))
    0.65
    """
    counts = torch.histc(pi.detach().float(), bins=bins, min=0.0, max=1.0).tolist()
    half = bins // 2
    if not any(counts[:half]) or not any(counts[half:]):
        return DEFAULT_TAU
    left = max(range(half), key=lambda b: counts[b])
    right = max(range(half, bins), key=lambda b: counts[b])
    between = range(left + 1, right)
    if not between:
        return DEFAULT_TAU
    lowest = min(counts[b] for b in between)
    start, length = _longest_run([counts[b] == lowest for b in between])
    return float(left + 1 + start + length / 2) / bins


def _longest_run(flags: list[bool]) -> tuple[int, int]:
    """Start and length of the longest run of True."""
    best, start = (0, 0), 0
    for position, flag in enumerate([*flags, False]):
        if flag:
            continue
        if position - start > best[1]:
            best = (start, position - start)
        start = position + 1
    return best
