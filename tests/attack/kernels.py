"""Layers at widths 1 to 17 in both memory formats: values and gradients are those of float64.

Cutting makes widths that few other networks have, and compiled kernels may be wrong there. The
layers run in a child process; after a crash another child goes on with the next case.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROUNDING = 1e-3  # of float32, relative to the largest value
PATIENCE = 60.0  # seconds for a child to end once it is silent


def attack(chance: random.Random, folder: Path) -> Iterator[str]:
    seed, done = chance.randrange(2**31), 0
    while True:
        before = done
        for failure in _child(seed, done):
            done += 1
            yield failure
        if done == before:  # all cases were computed
            return


def _child(seed: int, done: int) -> Iterator[str]:
    """The cases from a number on, until the child ends by itself or dies."""
    line = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.helpers.kernel_sweep",
        f"{seed}",
        f"{done}",
    ]
    child = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        while name := child.stdout.readline().strip():
            answer = child.stdout.readline().strip()
            if not answer:
                yield f"{name}: the process ended with {child.wait(PATIENCE)}"
                return
            yield f"{name}: error {answer}" if float(answer) > ROUNDING else ""
        if child.wait(PATIENCE) != 0 and child.stderr is not None:
            yield f"the sweep ended with {child.returncode}: {child.stderr.read()[-300:]}"
    finally:
        child.kill()
        child.communicate()
