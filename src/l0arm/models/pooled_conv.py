"""Convolution, 2 x 2 max pooling and ReLU in one, as a matrix product: fast for few input channels.

The columns of the product are ordered by *phase*: the four outputs that a pooling window compares
come from four blocks of columns, so that pooling is the maximum of four contiguous arrays.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

SMALL_BATCH = 16


class PooledConv2d(nn.Conv2d):
    """``relu(max_pool2d(conv2d(x), 2))`` for a square kernel without stride or padding.

    >>> layer = PooledConv2d(1, 3, 5)
    >>> x = torch.rand(20, 1, 28, 28)
    >>> stock = F.relu(F.max_pool2d(F.conv2d(x, layer.weight, layer.bias), 2))
    >>> torch.allclose(layer(x), stock, atol=1e-6)
    True
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size)

    def forward(self, x: Tensor) -> Tensor:
        assert self.bias is not None
        # An exported graph is better off with stock operators, and so are a few images: below this
        # the hundred slices of phase_columns cost more than they save.
        if torch.compiler.is_compiling() or x.shape[0] < SMALL_BATCH:
            return F.relu(F.max_pool2d(F.conv2d(x, self.weight, self.bias), 2))
        k, filters = self.weight.shape[-1], self.weight.shape[0]
        batch, high, wide = x.shape[0], (x.shape[2] - k + 1) // 2, (x.shape[3] - k + 1) // 2
        outputs = self.weight.flatten(1) @ phase_columns(x, k)
        phases = outputs.view(filters, 4, -1)
        top: Tensor = _MaxOfPhases.apply(phases)  # type: ignore[no-untyped-call]
        # Bias and ReLU commute with the maximum: a quarter of the work.
        pooled = F.relu(top + self.bias[:, None]).t().contiguous()
        return pooled.view(batch, high, wide, filters).permute(0, 3, 1, 2)  # channels last


def phase_columns(x: Tensor, k: int) -> Tensor:
    """The k x k patches of x as columns: those at even-even places first, then even-odd, ...

    Shape (channels k k, 4 batch h w) for maps that pool to h x w; the sides of x - k + 1 are even.
    """
    batch, channels, height, width = x.shape
    if (height - k + 1) % 2 or (width - k + 1) % 2 or height % 2 or width % 2:
        raise ValueError(
            f"pooling in phases needs even sides before and after a {k} x {k} kernel, "
            f"got {height} x {width}; pad the input or use Conv2d and max_pool2d"
        )
    h, w = (height - k + 1) // 2, (width - k + 1) // 2
    # Even and odd rows and columns apart, so that all slices below are contiguous at the end.
    apart = x.reshape(batch, channels, height // 2, 2, width // 2, 2).permute(3, 5, 1, 0, 2, 4)
    apart = apart.contiguous()
    patches = [
        apart[i % 2, j % 2, :, :, i // 2 : i // 2 + h, j // 2 : j // 2 + w]
        for row in range(k)
        for column in range(k)
        for i in (row, row + 1)
        for j in (column, column + 1)
    ]
    return torch.stack(patches, dim=1).view(channels * k * k, -1)


class _MaxOfPhases(torch.autograd.Function):
    """Maximum over dim 1 of (filters, 4, n); the gradient goes to the first that attains it."""

    @staticmethod
    def forward(ctx: FunctionCtx, y: Tensor) -> Tensor:
        a, b, c, d = y.unbind(1)
        top = torch.maximum(torch.maximum(a, b), torch.maximum(c, d))
        ctx.save_for_backward(y, top)
        return top

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        y, top = ctx.saved_tensors  # type: ignore[attr-defined]
        out = torch.empty_like(y)
        taken = torch.zeros_like(top, dtype=torch.bool)
        for phase in range(4):
            hit = (y[:, phase] == top) & ~taken
            torch.mul(gradient, hit, out=out[:, phase])
            taken |= hit
        return out
