"""The memory that a network takes, measured in a process of its own (Linux)."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from torch import Tensor

Make = Callable[[int], Callable[[Tensor], object]]  # threads -> call
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_memory(make: Make, x: Tensor, *, timeout: float = 300.0) -> int | None:
    """Bytes by which a fresh process grows at most while it holds the network and calls it.

    What loading takes for a moment does not count. None where it cannot be measured.
    """
    if not RESET.exists():
        return None
    try:
        payload = pickle.dumps((make, x))  # our own, for a child of ours
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_measure, args=(there, payload))
    child.start()
    there.close()
    try:
        grown: int | None = here.recv() if here.poll(timeout) else None
    except EOFError:  # it ended without a word
        grown = None
    child.kill()  # it has nothing more to do, and must not keep us waiting at its end
    child.join()
    return grown


def _measure(answer: Connection, payload: bytes) -> None:
    before = _status("VmRSS")
    make, x = pickle.loads(payload)
    call = make(1)
    try:
        RESET.write_text("5")  # the peak begins anew
    except OSError:
        answer.send(None)
        return
    call(x)
    answer.send(_status("VmHWM") - before)


def _status(field: str) -> int:
    """A line of the process's status, in bytes."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    return 0
