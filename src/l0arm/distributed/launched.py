"""Joining the processes that torchrun started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import distributed as dist

from l0arm.distributed.team import Team, noticing_losses


class NoBackend(RuntimeError):
    """This torch cannot connect processes."""


@contextmanager
def launched_team() -> Iterator[Team]:
    """The team of this process: those that torchrun started with it, or itself alone.

    What they tell each other travels by gloo, gradients on GPUs by NCCL.
    """
    if not (dist.is_available() and dist.is_torchelastic_launched()):
        yield Team()
        return
    if not dist.is_gloo_available():
        raise NoBackend(
            "this torch has no gloo, which connects the processes; install a build with it, or "
            "start one process without torchrun"
        )
    with noticing_losses():
        dist.init_process_group(_backend())
    try:
        yield Team.here()
    finally:
        dist.destroy_process_group()


def _backend() -> str:
    gpus = torch.cuda.is_available() and dist.is_nccl_available()
    return "cpu:gloo,cuda:nccl" if gpus else "gloo"
