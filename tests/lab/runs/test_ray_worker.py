"""What a Ray worker does, without Ray: an interrupt of the main thread becomes a SIGTERM."""

import _thread
import signal
import sys
import threading
from pathlib import Path

import pytest

from l0arm.lab.runs import ray_worker

CHILD = """
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path(sys.argv[1]).write_text("saved")
    sys.exit(130)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True: time.sleep(0.05)
"""


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / ".token"
    path.touch()
    return path


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_worker, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(ray_worker, "PATIENCE_SECONDS", 0.1)


def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let ``python -m l0arm`` be this script."""
    path = tmp_path / "command"
    path.write_text(f"#!/bin/sh\nshift 2\nexec {sys.executable} -c '{text}' \"$@\"\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def test_the_exit_code_and_the_log(
    tmp_path: Path, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path, monkeypatch, "import sys; print(sys.argv[1:]); sys.exit(3)")
    log = tmp_path / "run.log"
    log.write_text("before\n")
    assert ray_worker.train(["train", "a b"], str(log), str(token)) == (3, "")
    assert log.read_text() == 'before\n["train", "a b"]\n'.replace('"', "'")


def test_an_interrupt_is_passed_on_and_the_run_saves_itself(
    tmp_path: Path, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path, monkeypatch, CHILD)
    log, saved = tmp_path / "run.log", tmp_path / "saved"

    def interrupt_when_ready() -> None:
        while not (log.exists() and log.read_text()):
            pass
        _thread.interrupt_main()  # as ray.cancel does

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=interrupt_when_ready)
    thread.start()
    assert ray_worker.train([str(saved)], str(log), str(token)) == (130, "")
    thread.join()
    assert saved.read_text() == "saved"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_folder_that_is_not_the_campaigns_starts_nothing(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    code, reason = ray_worker.train(["train"], str(log), str(tmp_path / ".no-token"))
    assert code == 1
    assert f"does not see the folder {tmp_path}" in reason
    assert "--runs" in reason
    assert not log.exists()
