"""Damaged checkpoints and records, then --resume: the run ends as one that was left alone.

A flipped bit anywhere in the newest checkpoint, or a newest checkpoint that is malformed but has a
right digest, must be passed over for the one before, with a message. Damaged records are repaired,
rebuilt from a checkpoint or refused. A folder that is moved away ends the run with one line.
"""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch
from tests.helpers.power_cut import Cut, CutAfter
from tests.helpers.run_states import bits, timeless
from torch import Tensor

from l0arm.lab.data import Dataset, load_dataset
from l0arm.lab.errors import RunFailed, UserError
from l0arm.lab.recipes.recipe import Recipe, load_recipe
from l0arm.lab.runs.checkpoint import newest_checkpoint, save_checkpoint
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.training import Callback, train

QUICK = ("data.name=mnist-mini", "data.limit=200", "training.batch=50", "training.epochs=3")
CUTS = (6, 7, 9, 10, 11)  # of 12 steps, each of which is saved
# What is put in the place of values of another kind.
WRONG: tuple[Any, ...] = ("x", None, [], {}, [[1]], {"a": 1}, -1, 10**400, True, torch.zeros(3, 5))


class Listener(Callback):
    """Remembers the messages about checkpoints that were passed over."""

    def __init__(self) -> None:
        self.damaged: list[str] = []

    def on_resume(self, epoch: int, damaged: list[str]) -> None:
        self.damaged += damaged


def attack(chance: random.Random, folder: Path) -> Iterator[str]:
    data, recipe = load_dataset("mnist-mini"), load_recipe("mlp-l0-arm", QUICK)
    whole = RunFolder(folder / "whole")
    train(whole, recipe, data)
    for number in count():
        run = RunFolder(folder / f"run-{number}")
        base = RunFolder(folder / f"cut-{chance.choice(CUTS)}")
        if not base.path.exists():
            _cut(base, recipe, data)
        shutil.copytree(base.path, run.path)
        attempt = chance.choice((_flips, _flips, _malformed, _records, _moved))
        yield attempt(chance, run, whole, data)
        shutil.rmtree(run.path, ignore_errors=True)


def _cut(base: RunFolder, recipe: Recipe, data: Dataset) -> None:
    after = int(base.path.name.partition("-")[2])
    try:
        train(base, recipe, data, callback=CutAfter(after), checkpoint_seconds=0.0)
    except Cut:
        return
    raise AssertionError("the run was not cut")


def _flips(chance: random.Random, run: RunFolder, whole: RunFolder, data: Dataset) -> str:
    suffix = chance.choice((".json", ".json", ".safetensors"))
    newest = max(run.checkpoints.glob(f"*{suffix}"))
    content = bytearray(newest.read_bytes())
    place, bit = chance.randrange(len(content)), chance.randrange(8)
    content[place] ^= 1 << bit
    newest.write_bytes(content)
    failure = _resumed(run, whole, data, refusable=False)
    return f"bit {bit} of byte {place} of {newest.name}: {failure}" if failure else ""


def _malformed(chance: random.Random, run: RunFolder, whole: RunFolder, data: Dataset) -> str:
    """The newest checkpoint has a right digest, but something else stands in one place."""
    state, _ = newest_checkpoint(run.checkpoints)
    assert state is not None
    places = list(_places(state, ()))
    place = chance.choice(places[: len(state)] if chance.random() < 0.3 else places)
    parent: Any = state
    for key in place[:-1]:
        parent = parent[key]
    value = chance.choice([wrong for wrong in WRONG if _differ(wrong, parent[place[-1]])])
    if chance.random() < 0.3 and isinstance(parent, dict) and isinstance(place[-1], str):
        del parent[place[-1]]
        shown = "removed"
    else:
        parent[place[-1]] = copy.deepcopy(value)
        shown = str(value)[:20]
    save_checkpoint(run.checkpoints, int(max(run.checkpoints.glob("*.json")).stem), state)
    failure = _resumed(run, whole, data, refusable=False)
    return f"{'/'.join(map(str, place))} {shown}: {failure}" if failure else ""


def _differ(wrong: Any, value: Any) -> bool:
    """Whether ``wrong`` is of another kind, or a tensor of another shape."""
    if isinstance(value, Tensor) and isinstance(wrong, Tensor):
        return wrong.shape != value.shape
    numbers = type(value) in (int, float) and type(wrong) is int and wrong < 2**63
    return not numbers and type(wrong) is not type(value)


def _places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The paths to all values whose kind matters, the outermost first."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    items = [(key, part) for key, part in items if part is not None and type(part) is not bool]
    yield from ((*path, key) for key, _ in items)
    for key, part in items:
        yield from _places(part, (*path, key))


def _records(chance: random.Random, run: RunFolder, whole: RunFolder, data: Dataset) -> str:
    lines = run.records.read_bytes().splitlines(keepends=True)
    place = chance.randrange(len(lines))
    kind = chance.choice(("cut", "deleted", "doubled", "swapped", "garbage", "empty", "no file"))
    if kind == "cut":
        lines[place] = lines[place][: chance.randrange(len(lines[place]))]
    elif kind == "deleted":
        del lines[place]
    elif kind == "doubled":
        lines.insert(place, lines[place])
    elif kind == "swapped":
        lines.reverse()
    elif kind == "garbage":
        lines.insert(place, bytes(chance.randrange(256) for _ in range(50)) + b"\n")
    else:
        lines = []
    run.records.write_bytes(b"".join(lines))
    if kind == "no file":
        run.records.unlink()
    failure = _resumed(run, whole, data, refusable=True)
    return f"epochs.jsonl, {kind} at line {place + 1}: {failure}" if failure else ""


def _moved(chance: random.Random, run: RunFolder, whole: RunFolder, data: Dataset) -> str:
    """The folder is moved away, or replaced by an empty one, after a step of the resumed run."""
    aside, empty = run.path.with_name("aside"), chance.random() < 0.5

    class Mover(CutAfter):
        def on_step(self, done: int, total: int, loss: float) -> None:
            self.left -= 1
            if self.left == 0:
                run.path.rename(aside)
                if empty:
                    run.path.mkdir()

    seconds = chance.choice((0.0, 60.0))
    try:
        mover = Mover(1)
        train(run, run.recipe(), data, resume=True, callback=mover, checkpoint_seconds=seconds)
    except RunFailed as error:
        left = list(run.path.iterdir()) if run.path.exists() else []
        failure = f"it wrote {left[0]}" if left else ""
        failure = failure or ("" if "\n" not in str(error) else f"several lines: {error}")
    except Exception as error:
        failure = f"traceback: {error!r}"
    else:
        failure = "the run reports success"
    shutil.rmtree(run.path, ignore_errors=True)
    aside.rename(run.path)
    failure = failure or _resumed(run, whole, data, refusable=False)
    return f"folder moved, {empty=}: {failure}" if failure else ""


def _resumed(run: RunFolder, whole: RunFolder, data: Dataset, *, refusable: bool) -> str:
    """Resume a run to its end. Returns what was wrong."""
    listener = Listener()
    try:
        train(run, run.recipe(), data, resume=True, callback=listener)
    except (UserError, RunFailed) as error:
        if "\n" in str(error):
            return f"refused in several lines: {error}"
        return "" if refusable else f"refused: {error}"
    except Exception as error:
        return f"traceback: {error!r}"
    if any("\n" in message for message in listener.damaged):
        return f"a message of several lines: {listener.damaged}"
    same = bits(run) == bits(whole) and timeless(run) == timeless(whole)
    return "" if same else f"silently another result ({listener.damaged})"
