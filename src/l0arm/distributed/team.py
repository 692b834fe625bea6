"""The processes of a run: who this one is, and the few things they tell each other.

Only numbers, tensors and text travel, never pickled objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

BROKEN = re.compile("gloo|nccl|connection|socket|peer|timed? ?out", re.IGNORECASE)


class ProcessLost(RuntimeError):
    """Another process of the run ended or cannot be reached."""


@contextmanager
def noticing_losses() -> Iterator[None]:
    """What torch raises when another process is gone, as ProcessLost."""
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
    """``size`` processes, of which this one is number ``rank``; alone unless told otherwise.

    >>> Team().sum([1.5, 2])
    [1.5, 2.0]
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"  # of what travels

    @staticmethod
    def here(device: str = "cpu") -> Team:
        """The process group that this process has joined, if any.

        What travels is on the CPU if a backend takes it there; NCCL alone needs it on ``device``.
        """
        if not (dist.is_available() and dist.is_initialized()):
            return Team()
        device = "cpu" if "cpu" in dist.get_backend_config() else device
        return Team(dist.get_rank(), dist.get_world_size(), device)

    @property
    def first(self) -> bool:
        """Whether this is the one that writes files and speaks."""
        return self.rank == 0

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Each number added up over all processes, in double precision."""
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        if self.size > 1:
            with noticing_losses():
                dist.all_reduce(total)
        return total.tolist()

    def any(self, wish: bool) -> bool:
        """Whether at least one process says yes."""
        return self.sum([wish])[0] > 0

    def stacked(self, tensor: Tensor) -> Tensor:
        """The tensors of all processes (of one shape), along a new first dimension."""
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        if self.size == 1:
            return tensor[None]
        with noticing_losses():
            dist.all_gather(parts, tensor)
        return torch.stack(parts)

    def texts(self, text: str) -> list[str]:
        """What each process says, in the order of ranks."""
        data = torch.frombuffer(bytearray(text.encode() + b"\0"), dtype=torch.uint8)
        length = int(self.stacked(torch.tensor(len(data), device=self.device)).max())
        padded = torch.zeros(length, dtype=torch.uint8, device=self.device)
        padded[: len(data)] = data
        rows = self.stacked(padded).cpu()
        return [bytes(row.tolist()).rstrip(b"\0").decode() for row in rows]
