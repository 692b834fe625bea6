"""Thresholds that close gates: tau for probabilities (Eq. 14), and scores with their own threshold.

The paper leaves a tau that depends on the histogram of g(phi) to future work (Sec. 3.2). ``valley``
is one.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor

from l0arm.contracts import Gates

DEFAULT_TAU = 0.5


def checked_threshold(threshold: float) -> float:
    """``threshold`` itself, the one of a method's scores, if it is a finite number."""
    if not (isinstance(threshold, Real) and math.isfinite(threshold)):
        raise ValueError(f"threshold must be a finite number; got {threshold!r}")
    return float(threshold)


@dataclass(frozen=True)
class ScoredGates(Gates):
    """Smooth gates that are pruned if a score exceeds a threshold of their own.

    The threshold is the last column of phi: saved with it, but not trained by gradient.

    Attributes:
        score_range: Scores from certainly kept to certainly pruned, shown as ``probs`` 1 to 0.
    """

    smooth = True
    score_range: ClassVar[tuple[float, float]]

    @property
    @abstractmethod
    def score(self) -> Tensor:
        """What is compared with the threshold. Above it, a gate is pruned."""

    @property
    def thresholds(self) -> Tensor:
        """The threshold of every gate: a view of phi."""
        return self.phi[:, -1]

    @property
    def probs(self) -> Tensor:
        """The score on a scale from 0 (pruned) to 1 (kept), for histograms."""
        low, high = self.score_range
        return ((high - self.score) / (high - low)).clamp(0.0, 1.0)

    @property
    def open_probability(self) -> Tensor:
        """1 for gates that are kept, 0 for gates that are pruned. A draw itself is never 0."""
        return (self.score <= self.thresholds.detach()).to(self.phi.dtype)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.rsample(generator).detach()

    def deterministic(self, tau: Tensor | float) -> Tensor:
        """E[z] for gates that are kept. tau is not used."""
        return self.kept_value() * self.open_probability


def valley(pi: Tensor, bins: int = 20) -> float:
    """A threshold in the valley between the two peaks of a histogram of probabilities.

    Args:
        pi: The probabilities of a group's gates.
        bins: The number of bins of the histogram.

    Returns:
        The middle of the longest run of least populated bins between the peak below 1/2 and the
        peak above it. 1/2 if all gates are on one side, or the peaks are neighbours.

    Example:
        >>> import torch
        >>> from l0arm.gates import valley
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
