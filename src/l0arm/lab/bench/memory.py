"""Peak memory of a network, in a process of its own, and of a training step (Linux)."""

from __future__ import annotations

import copy
import ctypes
import gc
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
    here, there = context.Pipe(duplex=False)
    # Tensors are sent through shared memory, which would move the caller's own weights there.
    try:
        child = context.Process(target=_measure, args=(_Before(), copy.deepcopy(make), x, there))
    except Exception:  # it cannot be copied (any error)
        return None
    grown: int | None = None
    try:
        child.start()
        there.close()
        if here.poll(timeout):
            grown = int(here.recv_bytes())
    except Exception:  # it cannot be sent (any error), or the child ended early
        grown = None
    finally:
        if child.pid is not None:
            child.kill()  # do not wait for its regular end
            child.join()
        here.close()
    return grown


class _Before:
    """The size of the child before it has the network: multiprocessing sends arguments in order."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return status_bytes, ("VmRSS",)


def _measure(before: int, make: Make, x: Tensor, parent: Connection[Any, Any]) -> None:
    call = make(1)
    try:
        RESET.write_text("5")  # the peak starts again from the present size
    except OSError:
        return
    call(x)
    parent.send_bytes(b"%d" % (status_bytes("VmHWM") - before))


def step_peak(make: Callable[[], Callable[[], object]]) -> int | None:
    """Bytes by which this process grows at most in a training step, with network and optimizer.

    The optimizer gets its state in a first step. None where the system does not tell (not Linux).
    """
    if not RESET.exists():
        return None
    make()()  # what a process loads once, such as kernels and the planner, does not count
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # free memory is given back (glibc)
    if trim is not None:
        trim(0)
    before = status_bytes("VmRSS")
    step = make()
    step()
    RESET.write_text("5")
    step()
    step()
    return status_bytes("VmHWM") - before


def tensor_peak(make: Callable[[], Callable[[], object]]) -> int:
    """Bytes of tensors that are alive at most in a training step, network and optimizer included.

    That is what the step needs. ``step_peak`` also has what the allocator keeps: blocks of many
    sizes, which a gated step has, leave gaps.
    """
    before = _alive()
    step = make()
    step()
    step()
    held = _alive() - before
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as found:
        step()
    results: Any = found.profiler
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: int(event.start_ns())):
        now += event.nbytes()
        peak = max(peak, now)
    return held + peak


def _alive() -> int:
    """Bytes of all tensors that Python holds. Gradients are dropped: a step makes new ones."""
    for thing in gc.get_objects():
        if type(thing) is nn.Parameter:
            thing.grad = None
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) in (Tensor, nn.Parameter)]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def status_bytes(field: str) -> int:
    """One line of the process's status, in bytes."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    return 0
