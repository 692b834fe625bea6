"""Runs that are killed (SIGKILL) or interrupted (SIGINT), and resumed."""

import random
import signal
import time
from pathlib import Path

import pytest
from tests.helpers.commands import Command
from tests.helpers.run_states import bits, timeless

from l0arm.lab.runs.checkpoint import newest_checkpoint
from l0arm.lab.runs.folder import RunFolder

SETTINGS = (
    "--set data.name=mnist-mini --set data.limit=2000 --epochs 6 --quiet --checkpoint-every 0.05"
)


def start(folder: RunFolder, recipe: str) -> Command:
    command = ["train", recipe, "--run-dir", str(folder.path), "--resume", *SETTINGS.split()]
    return Command(command)


def kill_until_done(folder: RunFolder, recipe: str, kills: int, seed: int) -> int:
    """Kill a run at random moments of its work, resume it each time, and let it finish."""
    chance, landed = random.Random(seed), 0
    while landed < kills and not folder.finished:
        process = start(folder, recipe)
        wait_for_work(process, folder, chance)
        if process.running():
            process.send(signal.SIGKILL)
        code, errors = process.ended()
        landed += code == -signal.SIGKILL
        assert code in (0, -signal.SIGKILL), errors
    assert start(folder, recipe).ended() == (0, "")
    return landed


def wait_for_work(process: Command, folder: RunFolder, chance: random.Random) -> None:
    """Wait until the process holds the lock, and a random time longer."""
    lock = folder.path / "lock"
    while process.running():
        if lock.exists() and lock.read_text() == str(process.pid):
            break
        time.sleep(0.01)
    time.sleep(chance.uniform(0.0, 0.2))


def compare(tmp_path: Path, recipe: str, kills: int, seed: int) -> int:
    """Compare a run that is killed with one that is left alone. Returns the number of kills."""
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    left_alone = start(whole, recipe)
    landed = kill_until_done(killed, recipe, kills, seed)
    assert left_alone.ended() == (0, "")
    assert bits(killed) == bits(whole)
    assert timeless(killed) == timeless(whole)
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
    while process.running() and not folder.recipe_file.exists():
        time.sleep(0.01)
    time.sleep(0.3)
    process.send(signal.SIGINT)
    code, errors = process.ended()
    assert code == 130
    assert errors.startswith("interrupted: saved after epoch")
    assert errors.count("\n") == 1
    state, damaged = newest_checkpoint(folder.checkpoints)
    assert state is not None
    assert damaged == []
