"""The command line in a process of its own that starts within milliseconds.

A server imports torch and all commands once, and every process is a fork of it. Each process has
its own streams, signal handlers and exit code, as if it had been started from a shell.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

CLOSED = "closed"  # instead of the path of a stream
COMMANDS = ("bench", "compact", "compare_estimators", "compare_runs", "data", "evaluate", "export")
COMMANDS += ("figure", "inspect", "plan", "prune", "recipes", "report", "reproduce")
COMMANDS += ("sweep", "table")
PRELOAD = ["torch._dynamo", "l0arm.lab.cli.train"]  # an optimizer imports the first one

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([*PRELOAD, *(f"l0arm.lab.cli.{name}" for name in COMMANDS)])


@dataclass(frozen=True)
class Ended:
    """How a process ended. The code is negative if a signal killed it, None after a timeout."""

    code: int | None
    out: str
    err: str

    @property
    def traceback(self) -> bool:
        return "Traceback" in self.err or "Exception ignored" in self.err

    def one_line(self, start: str, code: int) -> bool:
        """Whether it ended with this code and one line of error that starts like this."""
        return self.code == code and self.err.startswith(start) and self.err.count("\n") == 1


@dataclass(frozen=True)
class Start:
    """How to start a process.

    ``stdout`` and ``stderr`` are paths of files, of devices or of named pipes, or CLOSED.
    ``setup`` is Python source that the process executes before the command, for example to send
    itself a signal at a known step.
    """

    words: Sequence[str]
    folder: Path
    stdout: str = "stdout.txt"
    stderr: str = "stderr.txt"
    encoding: str = "utf-8"
    setup: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


class Running:
    """A process that was started."""

    def __init__(self, start: Start) -> None:
        self.start = start
        for name in (start.stdout, start.stderr):
            if (start.folder / name).is_file():
                (start.folder / name).unlink()
        self.process: ForkServerProcess = SERVER.Process(target=_child, args=(start,))
        self.process.start()

    def signal(self, number: int) -> None:
        """Send a signal, if the process still runs."""
        if self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, number)

    def end(self, seconds: float = 120.0) -> Ended:
        """Wait for the end, or kill the process after so many seconds."""
        self.process.join(seconds)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            self.process.join()
        self.process.close()
        out, err = (self._text(name) for name in (self.start.stdout, self.start.stderr))
        return Ended(code, out, err)

    def _text(self, name: str) -> str:
        path = self.start.folder / name
        return path.read_text(errors="replace") if path.is_file() else ""


def run(line: str, folder: Path, **options: str) -> Ended:
    """Run a command line to its end. The options are fields of ``Start``."""
    return Running(Start(line.split(), folder, **options)).end()  # type: ignore[arg-type]


def _child(start: Start) -> None:
    """Become the command line. Never returns."""
    code: object = 1
    try:
        os.chdir(start.folder)
        os.environ.update({"COLUMNS": "80", "XDG_CACHE_HOME": str(start.folder / "cache")})
        os.environ.update(start.environment)
        _replace_streams(start)
        import torch

        torch.set_num_threads(1)
        exec(start.setup, {})
        from l0arm.__main__ import main

        sys.argv = ["l0arm", *start.words]
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code
            if isinstance(code, str):
                print(code, file=sys.stderr)
    except BaseException:
        if sys.stderr is not None:
            traceback.print_exc()
        code = 1
    status = 0 if code is None else code if isinstance(code, int) else 1
    os._exit(120 if _flush_fails() else status)


def _replace_streams(start: Start) -> None:
    """Open the streams as the interpreter does. A closed one is None."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for number, name in ((1, start.stdout), (2, start.stderr)):
        if name == CLOSED:
            os.close(number)
            continue
        opened = os.open(name, flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdout = sys.__stdout__ = _opened(1, start.stdout, start.encoding, "strict")
    sys.stderr = sys.__stderr__ = _opened(2, start.stderr, start.encoding, "backslashreplace")


def _opened(number: int, name: str, encoding: str, errors: str) -> Any:
    if name == CLOSED:
        return None
    raw = io.FileIO(number, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors=errors)


def _flush_fails() -> bool:
    """What the interpreter does at its end: an error here changes the exit code to 120."""
    failed = False
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            failed = True
            if stream is sys.stdout and sys.stderr is not None:
                print("Exception ignored in stdout:", sys.exc_info()[1], file=sys.stderr)
    return failed
