"""Values of draws on the host, where positions are computed.

A copy from a GPU waits for all that it has to do. Draws that are rows of one tensor are copied
together, so that a step with several draws waits once for them.
"""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from l0arm.precision import at_least_float32


class Host:
    """Copies draws to the host, and keeps the latest copy for the other rows of its tensor."""

    def __init__(self) -> None:
        self._latest: tuple[weakref.ref[Tensor], int, Tensor] | None = None

    def values(self, z: Tensor) -> Tensor:
        """The values of a draw where numpy can read them, in float32 at least.

        On the CPU they share the memory of the draw, unless the dtype changes.
        """
        if z.requires_grad:
            z = z.detach()
        if self.is_here(z):
            return at_least_float32(z)
        rows = z._base
        if rows is None or not _is_row(z, rows):
            return self.copied(z)
        latest = self._latest
        if latest is None or latest[0]() is not rows or latest[1] != rows._version:
            latest = self._latest = weakref.ref(rows), rows._version, self.copied(rows)
        return latest[2][(z.storage_offset() - rows.storage_offset()) // rows.shape[1]]

    def equal(self, one: Tensor, other: Tensor) -> bool:
        """Whether two draws are equal, without another wait if they were copied."""
        if self.is_here(one) or one._base is None or one._base is not other._base:
            return torch.equal(one, other)
        return torch.equal(self.values(one), self.values(other))

    def is_here(self, z: Tensor) -> bool:
        """Whether the host can read the draw without waiting."""
        return z.device.type == "cpu"

    def copied(self, z: Tensor) -> Tensor:
        """A copy on the host. It waits for the device."""
        return at_least_float32(z.cpu())


def _is_row(z: Tensor, rows: Tensor) -> bool:
    matrix = rows.dim() == 2 and rows.is_contiguous() and not rows.is_inference()
    return matrix and rows.shape[1:] == z.shape and z.is_contiguous()


HOST = Host()
