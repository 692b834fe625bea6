"""What a Ray worker does for a run: start the command, watch it, pass on the wish to stop.

This file is sent to the workers by value and uses the standard library alone, so that a worker does
not load torch only to start a process.
"""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 10.0  # network file systems show new files late


def train(arguments: Sequence[str], log: str, token: str) -> tuple[int, str]:
    """Run ``python -m l0arm`` with these arguments; its exit code, and what the log cannot tell.

    ``token`` is a file that the campaign made a moment ago: if it is not here, then the folder of
    the runs is not the campaign's folder, and nothing is started.
    """
    if not _appears(Path(token)):
        return 1, (
            f"{platform.node()} does not see the folder {Path(log).parent} of this campaign; "
            "all machines of a cluster must share the folder of the runs: name one with --runs"
        )
    asked = []
    before = signal.getsignal(signal.SIGINT)
    # ray.cancel interrupts the main thread; as a note, not as an exception in the wrong place
    signal.signal(signal.SIGINT, lambda *_: asked.append(True))
    try:
        with Path(log).open("ab") as file:
            command = [sys.executable, "-m", "l0arm", *arguments]
            process = subprocess.Popen(command, stdout=file, stderr=file, process_group=0)
        return _watched(process, lambda: bool(asked)), ""
    finally:
        signal.signal(signal.SIGINT, before)


def _appears(path: Path) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _watched(process: subprocess.Popen[Any], asked: Callable[[], bool]) -> int:
    """The exit code of the process, which is told once if an end is asked for."""
    told = False
    while process.poll() is None:
        if asked() and not told:
            process.terminate()
            told = True
        time.sleep(POLL_SECONDS)
    return int(process.returncode)
