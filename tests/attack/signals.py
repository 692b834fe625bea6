"""Signals at random moments of a run, then --resume: it ends as one that was left alone."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from tests.helpers.cli_process import Ended, Running, Start
from torch import Tensor

from l0arm.lab.runs.checkpoint import newest_checkpoint
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.records import read

RECIPES = ("mlp-l0-arm-control", "mlp-l0-ar", "mlp-dense")
SETTINGS = "--set data.name=mnist-mini --set data.limit=2000 --set training.batch=50 --epochs 3"
INT, TERM, HUP, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL
SENT = ((INT,), (TERM,), (HUP,), (KILL,), (KILL,), (INT, INT), (HUP, TERM), (TERM, INT))


def attack(chance: random.Random, folder: Path) -> Iterator[str]:
    expected = {}
    for number in count():
        recipe = chance.choice(RECIPES)
        if recipe not in expected:
            ended = _start(folder / f"whole-{recipe}", recipe).end()
            assert ended.code == 0, ended.err
            expected[recipe] = _outcome(folder / f"whole-{recipe}" / "run")
        place = folder / f"run-{number}"
        failure = _interrupt(chance, place, recipe) or _finish(place, recipe, expected[recipe])
        yield f"{recipe}: {failure}" if failure else ""
        shutil.rmtree(place)


def _start(place: Path, recipe: str) -> Running:
    place.mkdir(exist_ok=True)
    line = f"train {recipe} {SETTINGS} --run-dir run --resume --quiet --checkpoint-every 0.05"
    return Running(Start(line.split(), place))


def _interrupt(chance: random.Random, place: Path, recipe: str) -> str:
    """Interrupt a run one to three times. Returns what was wrong about an end."""
    for _ in range(chance.randint(1, 3)):
        sent, wait = chance.choice(SENT), chance.uniform(0.0, 0.8)
        running = _start(place, recipe)
        _wait_for_work(running, place / "run" / "lock")
        time.sleep(wait)
        for number in sent:
            running.signal(number)
        ended = running.end()
        names = "+".join(signal.Signals(number).name for number in sent)
        if not _plausible(ended, sent, place / "run"):
            return f"{names} after {wait:.2f} s ended with {ended}"
    return ""


def _wait_for_work(running: Running, lock: Path) -> None:
    while running.process.is_alive():
        if lock.exists() and lock.read_text() == str(running.process.pid):
            return
        time.sleep(0.005)


def _plausible(ended: Ended, sent: tuple[int, ...], run: Path) -> bool:
    """Whether code and message say what happened."""
    if ended.code == 0:
        return ended.err == "" and RunFolder(run).finished
    if ended.code is not None and ended.code < 0:  # before the run began, or by SIGKILL
        return -ended.code in sent and -ended.code != INT and ended.err == ""
    if ended.one_line("interrupted: saved after epoch", 130):
        state, damaged = newest_checkpoint(run / "checkpoints")
        return state is not None and damaged == []
    if ended.one_line("interrupted: the command did not finish", 130):
        return True  # before the run began
    return sent.count(INT) == 2 and ended.one_line("failed: interrupted at once", 1)


def _finish(place: Path, recipe: str, expected: object) -> str:
    ended = _start(place, recipe).end()
    if ended.code != 0:
        return f"the resumed run ended with {ended}"
    return "" if _outcome(place / "run") == expected else "the resumed run has another result"


def _outcome(run: Path) -> tuple[dict[str, bytes], list[object]]:
    state, damaged = newest_checkpoint(run / "checkpoints")
    tensors: dict[str, bytes] = {"damaged": str(damaged).encode()}
    _collect(state, "", tensors)
    lines = read(RunFolder(run).records)
    return tensors, [(r.epoch, r.train_loss, r.test_loss, r.architecture) for r in lines]


def _collect(value: Any, path: str, tensors: dict[str, bytes]) -> None:
    if isinstance(value, Tensor):
        tensors[path] = value.numpy().tobytes()
    elif isinstance(value, dict):
        for key, part in value.items():
            _collect(part, f"{path}/{key}", tensors)
