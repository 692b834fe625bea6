"""A module that reads chosen positions of its input."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from l0arm.gating.engine import gather


class InputSelection(nn.Module):
    """``module(x[..., index])``: what remains of gates on inputs that nobody can stop sending.

    >>> import torch
    >>> InputSelection(nn.Identity(), -1, torch.tensor([0, 2]))(torch.tensor([[5.0, 6.0, 7.0]]))
    tensor([[5., 7.]])
    """

    index: Tensor

    def __init__(self, module: nn.Module, dim: int, index: Tensor) -> None:
        super().__init__()
        self.module = module
        self.dim = dim
        self.register_buffer("index", index)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = gather(self.module, args, kwargs, self.dim, self.index)
        return self.module(*args, **kwargs)

    def extra_repr(self) -> str:
        return f"{self.index.numel()} positions of dim {self.dim}"
