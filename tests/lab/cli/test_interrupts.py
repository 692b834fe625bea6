"""Signals to a command: a run is saved, the message and the exit code say what happened."""

import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.cli_process import Ended, Running, Start, run

from l0arm.lab.runs.checkpoint import newest_checkpoint

QUICK = "--set data.name=mnist-mini --set data.limit=200 --set training.batch=50 --epochs 3"
TRAIN = f"train mlp-l0-arm {QUICK} --quiet --run-dir run"

# Sends the signals in STEPS when so many steps are done. Nothing is left to chance.
AT_STEPS = """
import signal
from l0arm.lab.runs.training import _Loop
step, done = _Loop._step, 0
def signalled(self, *args):
    global done
    done += 1
    for number in {steps}.get(done, ()):
        signal.raise_signal(number)
    return step(self, *args)
_Loop._step = signalled
"""
WHILE_SAVING = """
import signal
from l0arm.lab.runs import session
save = session.save_checkpoint
def signalled(*args):
    {before}
    save(*args)
    {after}
session.save_checkpoint = signalled
"""
CTRL_C = "signal.raise_signal(signal.SIGINT)"


def steps_saved(folder: Path) -> int | None:
    state, damaged = newest_checkpoint(folder / "run" / "checkpoints")
    assert damaged == []
    return None if state is None else int(state["steps"])


def trained(folder: Path, steps: dict[int, tuple[int, ...]], more: str = "") -> Ended:
    setup = AT_STEPS.format(steps={n: tuple(map(int, sent)) for n, sent in steps.items()})
    return run(TRAIN, folder, setup=setup + more)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_the_run(tmp_path: Path, number: signal.Signals) -> None:
    ended = trained(tmp_path, {6: (number,)})
    assert ended.one_line("interrupted: saved after epoch 1 in run; go on with --resume", 130)
    assert steps_saved(tmp_path) == 6


def test_a_closed_terminal_and_a_shutdown_may_send_several_signals(tmp_path: Path) -> None:
    sent = (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGTERM, signal.SIGINT)
    ended = trained(tmp_path, {6: sent})
    assert ended.one_line("interrupted: saved after epoch 1", 130)
    assert steps_saved(tmp_path) == 6


def test_nohup_keeps_a_run_going(tmp_path: Path) -> None:
    ignored = "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    ended = trained(tmp_path, {6: (signal.SIGHUP,)}, ignored)
    assert (ended.code, ended.err) == (0, "")


def test_a_second_ctrl_c_says_that_nothing_is_saved(tmp_path: Path) -> None:
    ended = trained(tmp_path, {3: (signal.SIGINT, signal.SIGINT)})
    assert ended.one_line("failed: interrupted at once; the steps since the last check", 1)
    assert "nothing was saved in run yet" in ended.err
    assert steps_saved(tmp_path) is None


def test_a_second_ctrl_c_names_the_older_checkpoint(tmp_path: Path) -> None:
    assert trained(tmp_path, {6: (signal.SIGINT,)}).code == 130
    setup = AT_STEPS.format(steps={2: (2, 2)})
    ended = run(f"{TRAIN} --resume", tmp_path, setup=setup)
    assert ended.one_line("failed: interrupted at once", 1)
    assert "saved after epoch 1 in run; go on with --resume" in ended.err
    assert steps_saved(tmp_path) == 6


def test_a_second_ctrl_c_before_the_first_step_of_a_resumed_run(tmp_path: Path) -> None:
    assert trained(tmp_path, {6: (signal.SIGINT,)}).code == 130
    setup = (
        "import signal\nfrom l0arm.lab.runs import training\n"
        f"training.new_session = lambda *args: [{CTRL_C}, {CTRL_C}]\n"
    )
    ended = run(f"{TRAIN} --resume", tmp_path, setup=setup)
    assert ended.one_line("failed: interrupted at once", 1)
    assert "nothing new was saved in run; go on with --resume" in ended.err


@pytest.mark.parametrize(
    ("before", "after", "saved"),
    [(f"{CTRL_C}; {CTRL_C}", "pass", None), ("pass", f"{CTRL_C}; {CTRL_C}", 1)],
)
def test_a_second_ctrl_c_during_a_checkpoint(
    tmp_path: Path, before: str, after: str, saved: int | None
) -> None:
    """A checkpoint is there as a whole or not at all."""
    setup = WHILE_SAVING.format(before=before, after=after)
    ended = run(f"{TRAIN} --checkpoint-every 0", tmp_path, setup=setup)
    assert ended.one_line("failed: interrupted at once", 1)
    assert steps_saved(tmp_path) == saved


def test_a_second_ctrl_c_after_the_checkpoint_is_not_a_failure(tmp_path: Path) -> None:
    """A tracker may take its time to close when everything is saved."""
    slow = """
from l0arm.lab.runs import trackers
class Slow:
    def __init__(self, run): pass
    def record(self, record): pass
    def close(self): signal.raise_signal(signal.SIGINT)
trackers.TRACKERS["tensorboard"] = Slow
"""
    setup = AT_STEPS.format(steps={6: (2,)}) + slow
    ended = run(f"{TRAIN} --tensorboard", tmp_path, setup=setup)
    assert ended.one_line("interrupted: saved after epoch 1", 130)
    assert steps_saved(tmp_path) == 6


def test_a_command_that_is_no_run_ends_in_one_line(tmp_path: Path) -> None:
    setup = (
        "import signal\nfrom l0arm.lab.cli import evaluate\n"
        f"evaluate.use_outside = lambda name: {CTRL_C}\n"
    )
    assert run("evaluate run", tmp_path, setup=setup).one_line("interrupted: ", 130)


@pytest.mark.parametrize("package", ["typer", "pydantic", "torch"])
def test_ctrl_c_during_the_imports_is_one_line(tmp_path: Path, package: str) -> None:
    code = f"""
import runpy, signal, sys
class Interrupting:
    def find_spec(name, path=None, target=None):
        if name == {package!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting)
sys.argv = ["l0arm", "evaluate", "run"]
runpy.run_module("l0arm", run_name="__main__")
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (130, "interrupted: nothing was done\n")


def test_a_terminal_that_goes_away_saves_the_run(tmp_path: Path) -> None:
    """The system sends SIGHUP, and everything that is printed fails from then on."""
    master, slave = pty.openpty()
    terminal = os.ttyname(slave)
    leader = (
        "import fcntl, os, termios\nos.setsid()\n"
        f"fcntl.ioctl(os.open({terminal!r}, os.O_RDWR), termios.TIOCSCTTY, 0)\n"
    )
    marked = (
        "from l0arm.lab.runs import training\nstep = training._Loop._step\n"
        "def marking(self, *args):\n"
        "    open('started', 'w').close()\n    return step(self, *args)\n"
        "training._Loop._step = marking\n"
    )
    words = TRAIN.replace("--epochs 3 --quiet", "--epochs 10000").split()
    start = Start(words, tmp_path, stdout=terminal, stderr=terminal, setup=leader + marked)
    running = Running(start)
    while not (tmp_path / "started").exists():
        assert running.process.is_alive()
        if select.select([master], [], [], 0.01)[0]:
            os.read(master, 10_000)  # a full terminal would block the run
    os.close(slave)
    os.close(master)
    assert running.end().code == 130
    assert steps_saved(tmp_path) is not None
