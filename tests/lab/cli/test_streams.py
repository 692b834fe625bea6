"""Standard streams that are closed, full, narrow, or whose reader has gone."""

import json
import os
import sys
from pathlib import Path

import pytest
from tests.helpers.cli_process import CLOSED, Ended, Running, Start, run

from l0arm.lab.cli.streams import safe_streams
from l0arm.lab.runs.checkpoint import newest_checkpoint

QUICK = "--set data.name=mnist-mini --set data.limit=200 --set training.batch=50 --epochs 3"
TRAIN = f"train mlp-l0-arm {QUICK} --run-dir run"

WAIT_FOR_READER = """
import os, time
from l0arm.lab.runs import training
step = training._Loop._step
def waiting(self, *args):
    while self.session.epoch >= {epoch} and not os.path.exists("reader-has-gone"):
        time.sleep(0.01)
    return step(self, *args)
training._Loop._step = waiting
"""


def steps_saved(folder: Path) -> int | None:
    state, damaged = newest_checkpoint(folder / "run" / "checkpoints")
    assert damaged == []
    return None if state is None else int(state["steps"])


def piped_to_head(line: str, folder: Path, setup: str = "") -> Ended:
    """Run a command with an output that is closed by its reader after the first line."""
    os.mkfifo(folder / "pipe")
    running = Running(Start(line.split(), folder, stdout="pipe", setup=setup))
    with (folder / "pipe").open() as reader:
        assert reader.readline()
    (folder / "reader-has-gone").touch()
    return running.end()


@pytest.mark.parametrize(("kind", "epoch"), [("", 0), ("--json", 1)])
def test_a_run_whose_reader_has_gone_is_saved(tmp_path: Path, kind: str, epoch: int) -> None:
    """As `l0arm train ... | head -1`. The first line of JSON is that of the first epoch."""
    ended = piped_to_head(f"{TRAIN} {kind}", tmp_path, WAIT_FOR_READER.format(epoch=epoch))
    assert ended.one_line("failed: the standard output cannot be written (Broken pipe); saved", 1)
    assert f"saved after epoch {epoch + 1} in run; go on with --resume" in ended.err
    assert steps_saved(tmp_path) == 4 * (epoch + 1)
    assert run(f"{TRAIN} --resume", tmp_path).code == 0


@pytest.mark.parametrize("line", ["recipes", "--help", "--version", "train --help", TRAIN])
def test_a_command_that_only_prints_says_that_it_could_not(tmp_path: Path, line: str) -> None:
    ended = run(line, tmp_path, stdout="/dev/full")
    assert ended.one_line("failed: the standard output cannot be written (No space left", 1)


def test_an_output_in_ascii_gets_question_marks_and_json_gets_escapes(tmp_path: Path) -> None:
    ended = run(TRAIN, tmp_path, encoding="ascii")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("MLP 784-300-100, L0-ARM (? = 0.1/N): run\n")
    ended = run("recipes --json", tmp_path, encoding="ascii")
    assert ended.code == 0
    titles = [json.loads(line)["title"] for line in ended.out.splitlines()]
    assert any("λ" in title for title in titles)


def test_an_error_in_ascii_is_one_line(tmp_path: Path) -> None:
    ended = run("train λ", tmp_path, encoding="ascii")
    assert ended.one_line(r"error: no recipe '\u03bb'", 2)


@pytest.mark.parametrize("closed", ["stdout", "stderr", "both"])
@pytest.mark.parametrize("line", ["data mnist-mini", TRAIN])
def test_closed_streams_change_nothing(tmp_path: Path, closed: str, line: str) -> None:
    streams = {} if closed == "stdout" else {"stderr": CLOSED}
    streams |= {} if closed == "stderr" else {"stdout": CLOSED}
    ended = run(line, tmp_path, **streams)
    assert (ended.code, ended.err) == (0, "")
    assert bool(ended.out) == (closed == "stderr")


def test_an_error_with_closed_streams_keeps_its_code(tmp_path: Path) -> None:
    assert run("evaluate nowhere", tmp_path, stderr=CLOSED, stdout=CLOSED).code == 2


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    """A message of another package must not be written into a file of the run."""
    setup = (
        "import os\nfrom l0arm.lab.runs import training\nstep = training._Loop._step\n"
        "def noisy(self, *args):\n"
        "    os.write(1, b'noise')\n    os.write(2, b'noise')\n    return step(self, *args)\n"
        "training._Loop._step = noisy\n"
    )
    assert run(TRAIN, tmp_path, setup=setup, stdout=CLOSED, stderr=CLOSED).code == 0
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or b"noise" not in path.read_bytes()


def test_a_pipe_that_does_not_block_gets_everything(tmp_path: Path) -> None:
    """Other programs leave their pipes so. The output is larger than the pipe."""
    os.mkfifo(tmp_path / "pipe")
    setup = (
        "import os, sys\nos.set_blocking(1, False)\nfrom l0arm.lab.cli import recipes\n"
        "say = recipes.say\nrecipes.say = lambda text: say(text * 100)\n"
    )
    running = Running(Start(["recipes"], tmp_path, stdout="pipe", setup=setup))
    text = (tmp_path / "pipe").read_text()
    assert running.end().code == 0
    assert len(text) > 300_000
    assert text.count("mlp-l0-arm-separate") == 100


def test_the_streams_of_the_process_are_put_back() -> None:
    before = sys.stdout, sys.stderr
    with safe_streams():
        assert (sys.stdout, sys.stderr) != before
    assert (sys.stdout, sys.stderr) == before
