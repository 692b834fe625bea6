"""What a Ray worker does for a run: start the command, watch it, pass on a request to stop.

This file is sent to the workers by value. It uses only the standard library, so that a worker does
not import torch in order to start a process.
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
    """Run ``python -m l0arm`` with these arguments.

    Args:
        arguments: The command line.
        log: The file to which the output is appended.
        token: A file that the campaign has just created. If it does not appear on this machine, the
            folder of the runs is not shared, and nothing is started.

    Returns:
        The exit code, and a reason that the log cannot contain.
    """
    if not _appears(Path(token)):
        return 1, (
            f"{platform.node()} does not see the folder {Path(log).parent} of this campaign; "
            "all machines of a cluster must share the folder of the runs: name one with --runs"
        )
    requests: list[bool] = []
    before = signal.getsignal(signal.SIGINT)
    # ray.cancel interrupts the main thread. An exception could be raised anywhere, a flag cannot.
    signal.signal(signal.SIGINT, lambda *_: requests.append(True))
    try:
        with Path(log).open("ab") as file:
            command = [sys.executable, "-m", "l0arm", *arguments]
            process = subprocess.Popen(command, stdout=file, stderr=file, process_group=0)
        return _watched(process, lambda: bool(requests)), ""
    finally:
        signal.signal(signal.SIGINT, before)


def _appears(path: Path) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _watched(process: subprocess.Popen[Any], stop_requested: Callable[[], bool]) -> int:
    """Wait for the exit code. The process is terminated once when a stop is requested."""
    terminated = False
    while process.poll() is None:
        if stop_requested() and not terminated:
            process.terminate()
            terminated = True
        time.sleep(POLL_SECONDS)
    return int(process.returncode)
