"""Peak memory of a network, measured in a process of its own (Linux)."""

from __future__ import annotations

import copy
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Make = Callable[[int], Callable[[Tensor], object]]  # number of threads -> network as a call
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def torch_call(model: nn.Module, threads: int) -> Callable[[Tensor], object]:
    """The model as a call without gradients. Lives here so that the child imports little."""
    torch.set_num_threads(threads)

    def call(x: Tensor) -> object:
        with torch.inference_mode():
            return model(x)

    return call


def peak_memory(make: Make, x: Tensor, *, timeout: float = 300.0) -> int | None:
    """Bytes by which a fresh process grows at most while it holds the network and calls it.

    Memory that is only needed while the network loads does not count. The result is None where it
    cannot be measured: not on Linux, the network cannot be sent to another process, no answer.
    """
    if not RESET.exists():
        return None
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=_measure, args=(there,))
    child.start()
    there.close()
    grown: int | None = None
    try:
        # Tensors are sent through shared memory, which would move the caller's own weights there.
        here.send((copy.deepcopy(make), x))
        if here.poll(timeout):
            grown = here.recv()
    except Exception:  # it cannot be copied or sent (any error), or the child ended early
        grown = None
    finally:
        child.kill()  # do not wait for its regular end
        child.join()
        here.close()
    return grown


def _measure(parent: Connection[Any, Any]) -> None:
    before = status_bytes("VmRSS")
    make, x = parent.recv()
    call = make(1)
    try:
        RESET.write_text("5")  # the peak starts again from the present size
    except OSError:
        parent.send(None)
        return
    call(x)
    parent.send(status_bytes("VmHWM") - before)


def status_bytes(field: str) -> int:
    """One line of the process's status, in bytes."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    return 0
