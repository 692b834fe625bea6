"""phi, u and the losses are never kept in half precision: in bfloat16, P(u < 0.999) would be 1."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Half precisions are widened; float32 and float64 stay as they are."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()
