"""Which units a run keeps, and whether two runs share more of them than by chance.

Units can only be compared between runs that start from the same weights (training.init_seed).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from l0arm.lab.errors import UserError
from l0arm.lab.runs import records
from l0arm.lab.runs.folder import RunFolder

Survivors = Mapping[str, frozenset[int]]


@dataclass(frozen=True)
class Overlap:
    """How many units two runs both keep, and how many two random choices would share.

    The random choices keep as many units of each group as the runs do, all subsets equally likely.
    The count in common is hypergeometric, and the groups are independent.
    """

    common: int
    by_chance: float
    deviation: float  # standard deviation of the count by chance

    @property
    def sigmas(self) -> float:
        """The distance from chance in standard deviations, 0 if the deviation is 0."""
        return (self.common - self.by_chance) / self.deviation if self.deviation else 0.0


def survivors(folder: RunFolder) -> Survivors:
    """The units that a finished run keeps, by group.

    The records say how many units are open. Within a group these are the gates with the largest
    probability.
    """
    if not folder.finished:
        raise UserError(f"the run in {folder.path} is not finished; resume it")
    pi, kept = folder.read_result()["gates"], open_counts(folder)
    return {name: frozenset(_likeliest(part, kept[name])) for name, part in pi.items()}


def open_counts(folder: RunFolder) -> Mapping[str, int]:
    """How many units of each group a finished run keeps, from its last record."""
    found = records.read(folder.records)
    if not found:
        raise UserError(f"the run in {folder.path} is finished, but has no records")
    kept = {group.name: group.open for group in found[-1].groups}
    if not kept.keys() >= folder.read_result()["gates"].keys():
        raise UserError(f"the result in {folder.path} has groups that its records lack")
    return kept


def _likeliest(pi: Sequence[float], count: int) -> list[int]:
    return sorted(range(len(pi)), key=lambda unit: -pi[unit])[:count]


def overlap(one: Survivors, other: Survivors, units: Mapping[str, int]) -> Overlap:
    """Compare two runs with the same groups.

    >>> found = overlap({"fc": frozenset({0, 1})}, {"fc": frozenset({1, 2})}, {"fc": 4})
    >>> found.common, found.by_chance, round(found.deviation, 3)
    (1, 1.0, 0.577)
    """
    common, mean, variance = 0, 0.0, 0.0
    for name, n in units.items():
        a, b = len(one[name]), len(other[name])
        common += len(one[name] & other[name])
        mean += a * b / n
        variance += a * b * (n - a) * (n - b) / (n * n * (n - 1)) if n > 1 else 0.0
    return Overlap(common, mean, math.sqrt(variance))
