"""What a campaign asks of the place where its runs are executed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Work:
    """One command ``python -m l0arm ...`` to be executed."""

    arguments: tuple[str, ...]  # paths in them are absolute
    log: Path  # what the command prints is added here
    threads: int = 1  # cores it uses


@dataclass(frozen=True)
class End:
    """How a command ended."""

    code: int  # of the process; not 0 also where there was none
    reason: str = ""  # what the log does not tell: a machine that was lost, a folder not shared


class Handle(Protocol):
    """A command that was started."""

    def poll(self) -> End | None:
        """How it ended, or None while it runs or waits for a free core."""

    def stop(self) -> None:
        """Ask it to save itself and end; return at once."""

    def wait(self) -> None:
        """Return when it has ended."""


class Executor(Protocol):
    """A place where commands run."""

    def slots(self) -> int:
        """How many commands of one thread run at a time, unless told."""

    def start(self, work: Work) -> Handle:
        """Start a command; never wait for it."""
