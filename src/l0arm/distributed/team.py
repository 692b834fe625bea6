"""The processes of a run: joining them, and the few things they exchange.

Only numbers, tensors and text are exchanged, never pickled objects.
"""

from __future__ import annotations

import atexit
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

BROKEN = re.compile("gloo|nccl|connection|socket|peer|timed? ?out", re.IGNORECASE)

# DistributedDataParallel frees its reducer without giving up the interpreter lock. If that frees
# the process group too, it waits for gloo's thread, which after a broken connection waits for the
# lock to free its tensors: the process hangs instead of ending. So the groups outlive the reducer.
_LEFT: list[dist.ProcessGroup] = []
atexit.register(_LEFT.clear)


class NoBackend(RuntimeError):
    """This build of torch cannot connect processes."""


class ProcessLost(RuntimeError):
    """Another process of the run ended or cannot be reached."""


@contextmanager
def noticing_lost_processes() -> Iterator[None]:
    """Raise ProcessLost instead of what torch raises when another process is gone.

    Example:
        >>> with noticing_lost_processes():
        ...     raise RuntimeError("[gloo] Connection closed by peer")
        Traceback (most recent call last):
            ...
        l0arm.distributed.team.ProcessLost: another process of the run is gone ([gloo] ...)
    """
    try:
        yield
    except ProcessLost:
        raise
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not BROKEN.search(str(error)):
            raise
        first = str(error).strip().splitlines()[0]
        raise ProcessLost(f"another process of the run is gone ({first})") from None


@dataclass(frozen=True)
class Team:
    """The processes of a run, as one of them sees them; by default it is alone.

    Attributes:
        rank: The number of this process.
        size: How many processes there are.
        device: Where tensors must be to be exchanged.

    Example:
        >>> Team().sum([1.5, 2])
        [1.5, 2.0]
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @staticmethod
    def here(device: str = "cpu") -> Team:
        """The process group that this process has joined, if any.

        Tensors are exchanged on the CPU if a backend can do that. NCCL alone needs them on
        ``device``.
        """
        if not (dist.is_available() and dist.is_initialized()):
            return Team()
        device = "cpu" if "cpu" in dist.get_backend_config() else device
        return Team(dist.get_rank(), dist.get_world_size(), device)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Sum each number over all processes, in double precision."""
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        if self.size > 1:
            with noticing_lost_processes():
                dist.all_reduce(total)
        return total.tolist()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in at least one process."""
        return self.sum([flag])[0] > 0

    def stacked(self, tensor: Tensor) -> Tensor:
        """The tensors of all processes (of one shape), along a new first dimension."""
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        if self.size == 1:
            return tensor[None]
        with noticing_lost_processes():
            dist.all_gather(parts, tensor)
        return torch.stack(parts)

    def texts(self, text: str) -> list[str]:
        """The texts of all processes, in the order of ranks."""
        data = torch.frombuffer(bytearray(text.encode() + b"\0"), dtype=torch.uint8)
        length = int(self.stacked(torch.tensor(len(data), device=self.device)).max())
        padded = torch.zeros(length, dtype=torch.uint8, device=self.device)
        padded[: len(data)] = data
        rows = self.stacked(padded).cpu()
        return [bytes(row.tolist()).rstrip(b"\0").decode() for row in rows]


@contextmanager
def launched_team() -> Iterator[Team]:
    """Join the processes that torchrun started together; without torchrun, this one is alone.

    Messages travel by gloo, gradients on GPUs by NCCL.

    Raises:
        NoBackend: This build of torch has no gloo.

    Example:
        >>> with launched_team() as team:
        ...     team.size
        1
    """
    if not (dist.is_available() and dist.is_torchelastic_launched()):
        yield Team()
        return
    if not dist.is_gloo_available():
        raise NoBackend(
            "this torch has no gloo, which connects the processes; install a build with it, or "
            "start one process without torchrun"
        )
    gpus = torch.cuda.is_available() and dist.is_nccl_available()
    with noticing_lost_processes():
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo")
    if dist.group.WORLD is not None:
        _LEFT.append(dist.group.WORLD)
    try:
        yield Team.here()
    finally:
        dist.destroy_process_group()
