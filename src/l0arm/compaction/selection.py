"""A module that reads chosen positions of its input."""

from __future__ import annotations

from torch import Tensor, nn


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

    def forward(self, x: Tensor) -> Tensor:
        selected: Tensor = self.module(x.index_select(self.dim, self.index))
        return selected

    def extra_repr(self) -> str:
        return f"{self.index.numel()} positions of dim {self.dim}"
