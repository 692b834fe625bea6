"""Where the runs of a campaign are executed: the interface, and processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Work:
    """One command ``python -m l0arm ...`` to execute."""

    arguments: tuple[str, ...]  # with absolute paths
    log: Path  # the output of the command is appended here
    threads: int = 1  # cores it uses


@dataclass(frozen=True)
class End:
    """How a command ended."""

    code: int  # exit code, not 0 if the process never started
    reason: str = ""  # what the log cannot contain: a lost machine, a folder that is not shared


class Handle(Protocol):
    """A command that was started."""

    def poll(self) -> End | None:
        """How it ended, or None while it runs or waits for a free core."""

    def stop(self) -> None:
        """Ask the command to save and exit. Returns at once."""

    def wait(self) -> None:
        """Block until the command has ended."""


class Executor(Protocol):
    """Starts commands."""

    def slots(self) -> int:
        """The default number of commands of one thread that run at a time."""

    def start(self, work: Work) -> Handle:
        """Start a command without waiting for it."""


@dataclass(frozen=True)
class LocalProcess:
    """A process of this machine."""

    process: subprocess.Popen[bytes]

    def poll(self) -> End | None:
        code = self.process.poll()
        return None if code is None else End(code)

    def stop(self) -> None:
        self.process.terminate()

    def wait(self) -> None:
        self.process.wait()


@dataclass(frozen=True)
class LocalProcesses:
    """The default executor: processes of this machine."""

    def slots(self) -> int:
        return os.cpu_count() or 1

    def start(self, work: Work) -> LocalProcess:
        # In a process group of its own: Ctrl-C in a terminal goes to the whole group, and a second
        # Ctrl-C would end a run before it has saved.
        with work.log.open("ab") as log:
            command = [sys.executable, "-m", "l0arm", *work.arguments]
            return LocalProcess(subprocess.Popen(command, stdout=log, stderr=log, process_group=0))
