"""Interleaved timing: every round runs one block of every contestant.

The machine is shared, and a slow minute must slow all contestants alike. So ratios are formed
within a round, and the median over the rounds is reported with the smallest and the largest. If
another program used a core for most of a run, ``fastest`` is more reliable than the median. With
one thread, CPU time is measured, which other programs disturb less than the time on the wall.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import torch

Key = TypeVar("Key")


@dataclass(frozen=True)
class Contestant:
    """One thing to time. ``prepare`` runs before each block and is not timed."""

    step: Callable[[], object]
    prepare: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Plan:
    """How often to measure: ``rounds`` blocks, each of ``warm`` untimed and ``steps`` timed steps.

    No round begins after ``seconds``: a loaded machine gives fewer rounds, not a longer run.
    """

    rounds: int
    steps: int
    warm: int = 3
    seconds: float = math.inf


@dataclass(frozen=True)
class Spread:
    """The median over the rounds, with the smallest and the largest value."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))


def interleave(contestants: Mapping[Key, Contestant], plan: Plan) -> dict[Key, list[float]]:
    """Milliseconds per step, one mean per block, for every round of every contestant."""
    times: dict[Key, list[float]] = {key: [] for key in contestants}
    start = time.perf_counter()
    for number in range(plan.rounds):
        if number and time.perf_counter() - start > plan.seconds:
            break
        order = list(contestants.items())
        for key, contestant in order if number % 2 == 0 else reversed(order):
            times[key].append(_block(contestant, plan))
    return times


def _block(contestant: Contestant, plan: Plan) -> float:
    contestant.prepare()
    for _ in range(plan.warm):
        contestant.step()
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    for _ in range(plan.steps):
        contestant.step()
    return 1e3 * (clock() - start) / plan.steps


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Ratio of two contestants, formed round by round."""
    return Spread.of([a / b for a, b in zip(ours, theirs, strict=True)])


def fastest(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Ratio of the fastest blocks of two contestants."""
    return min(ours) / min(theirs)
