"""Precision of phi, u and the losses: float32 at least. In bfloat16, P(u < 0.999) would be 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

HALF = (torch.float16, torch.bfloat16)


def at_least_float32(x: Tensor) -> Tensor:
    """Convert half precision to float32. float32 and float64 stay as they are."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


class Precise(nn.Module):
    """A module whose own tensors never fall below float32, whatever it is cast to.

    They take small steps or accumulate many. In bfloat16 a step of 1/500 would change nothing.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        own = {**self._parameters, **self._buffers}
        before = {name: tensor.detach() for name, tensor in own.items() if tensor is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, precise in before.items():
            now = getattr(self, name)
            if now.dtype in HALF:
                self._widen(name, at_least_float32(precise).to(now.device))
        return self

    def _widen(self, name: str, precise: Tensor) -> None:
        parameter = self._parameters.get(name)
        if parameter is None:
            self._buffers[name] = precise
            return
        parameter.data = precise
        if parameter.grad is not None:
            parameter.grad = parameter.grad.float()
