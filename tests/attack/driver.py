"""Runs the attacks: each module of this folder that has a function ``attack``.

An attack is a generator of cases. Every case does something hostile to the library or to the
command line, and yields an empty string if that was handled as documented, or else a sentence that
says what went wrong and how to repeat it. All randomness comes from the generator that is passed.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path

Attack = Callable[[random.Random, Path], Iterator[str]]  # with an empty folder to work in
OWN = {"__main__", "driver"}
SHOWN = 5  # failures that are printed of each attack


@dataclass(frozen=True)
class Outcome:
    """What came of an attack."""

    name: str
    cases: int
    failures: tuple[str, ...]
    seconds: float


def attacks() -> dict[str, Attack]:
    """All attacks, by the name of their module."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    names = [path.stem for path in files if path.stem not in OWN and path.stem[:5] != "test_"]
    return {name: import_module(f"tests.attack.{name}").attack for name in names}


def execute(
    name: str, attack: Attack, *, seed: int, seconds: float, cases: int | None = None
) -> Outcome:
    """Run an attack until its time is over, or for so many cases."""
    started, done, failures = time.monotonic(), 0, []
    with tempfile.TemporaryDirectory() as folder:
        results = attack(random.Random(seed), Path(folder))
        for failure in islice(results, cases):
            done += 1
            failures += [f"case {done}: {failure}"] if failure else []
            if time.monotonic() - started > seconds:
                break
        results.close()  # type: ignore[attr-defined]
    return Outcome(name, done, tuple(failures), time.monotonic() - started)


def table(outcomes: list[Outcome]) -> str:
    """The outcomes as text, with the first failures of each attack.

    >>> print(table([Outcome("signals", 9, (), 61.0), Outcome("values", 2, ("case 2: x",), 1.0)]))
    class     cases  failures  seconds
    signals       9         0       61
    values        2         1        1
    <BLANKLINE>
    values: case 2: x
    """
    width = max([8, *(len(each.name) for each in outcomes)])
    lines = [f"{'class':<{width}}  {'cases':>5}  {'failures':>8}  {'seconds':>7}"]
    for each in outcomes:
        figures = f"{each.cases:>5}  {len(each.failures):>8}  {each.seconds:>7.0f}"
        lines.append(f"{each.name:<{width}}  {figures}")
    for each in outcomes:
        lines += [f"\n{each.name}: {failure}" for failure in each.failures[:SHOWN]]
    return "\n".join(lines)
