"""kill -9 at random moments, --resume, and the run ends as one that was left alone."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from l0arm.lab.runs.checkpoint import newest_checkpoint
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.records import read

SETTINGS = (
    "--set data.name=mnist-mini --set data.limit=2000 --epochs 3 --quiet --checkpoint-every 0.05"
)


def start(folder: RunFolder, recipe: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "l0arm", "train", recipe, "--run-dir", str(folder.path)]
    return subprocess.Popen([*command, "--resume", *SETTINGS.split()], stderr=subprocess.PIPE)


def kill_until_done(folder: RunFolder, recipe: str, kills: int, seed: int) -> int:
    """Kill the run so many times at random moments of its work, then let it end."""
    chance, landed = random.Random(seed), 0
    while landed < kills and not folder.finished:
        process = start(folder, recipe)
        wait_for_work(process, folder, chance)
        process.kill()
        _, errors = process.communicate()
        landed += process.returncode == -signal.SIGKILL
        assert process.returncode in (0, -signal.SIGKILL), errors.decode()
    process = start(folder, recipe)
    _, errors = process.communicate()
    assert process.returncode == 0, errors.decode()
    return landed


def wait_for_work(
    process: subprocess.Popen[bytes], folder: RunFolder, chance: random.Random
) -> None:
    """Until the process holds the lock and then a little longer, to hit steps, saves, records."""
    lock = folder.path / "lock"
    while process.poll() is None:
        if lock.exists() and lock.read_text() == str(process.pid):
            break
        time.sleep(0.01)
    time.sleep(chance.uniform(0.0, 0.4))


def outcome(folder: RunFolder) -> tuple[dict[str, Any], list[Any]]:
    state, damaged = newest_checkpoint(folder.checkpoints)
    assert state is not None
    assert damaged == []
    tensors: dict[str, bytes] = {}
    collect(state, "", tensors)
    lines = [(r.epoch, r.train_loss, r.test_loss, r.architecture) for r in read(folder.records)]
    return tensors, lines


def collect(value: Any, path: str, tensors: dict[str, bytes]) -> None:
    if isinstance(value, Tensor):
        tensors[path] = value.numpy().tobytes()
    elif isinstance(value, dict):
        for key, part in value.items():
            collect(part, f"{path}/{key}", tensors)


def compare(tmp_path: Path, recipe: str, kills: int, seed: int) -> int:
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    left_alone = start(whole, recipe)
    landed = kill_until_done(killed, recipe, kills, seed)
    _, errors = left_alone.communicate()
    assert left_alone.returncode == 0, errors.decode()
    assert outcome(killed) == outcome(whole)
    assert {p.name for p in killed.path.iterdir()} == {p.name for p in whole.path.iterdir()}
    assert not list(killed.checkpoints.glob(".*"))
    return landed


def test_a_run_killed_four_times_ends_the_same(tmp_path: Path) -> None:
    assert compare(tmp_path, "mlp-l0-arm-control", kills=4, seed=0) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("recipe", ["lenet5-l0-ar-control", "mlp-l0-arm-control"])
def test_a_run_killed_ten_times_ends_the_same(tmp_path: Path, recipe: str, seed: int) -> None:
    assert compare(tmp_path, recipe, kills=10, seed=seed) >= 5


def test_an_interrupt_saves_the_run_and_says_so(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    process = start(folder, "lenet5-l0-arm-control")
    while process.poll() is None and not folder.recipe_file.exists():
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.decode().startswith("interrupted: saved after epoch")
    assert errors.decode().count("\n") == 1
    state, damaged = newest_checkpoint(folder.checkpoints)
    assert state is not None
    assert damaged == []
