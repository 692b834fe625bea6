"""Run a function in two real processes that are connected by gloo; each returns tensors."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import multiprocessing


def in_two_processes(function: Callable[[int], dict[str, Any]], folder: Path) -> list[Any]:
    """What ``function(rank)`` gives in each process."""
    multiprocessing.spawn(_process, (function, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def _process(rank: int, function: Callable[[int], dict[str, Any]], folder: str) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    try:
        torch.save(function(rank), f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()
    # Without finalization: on a busy machine a thread of gloo may free its last tensor only then,
    # for which it needs the interpreter, and the process aborts.
    os._exit(0)
