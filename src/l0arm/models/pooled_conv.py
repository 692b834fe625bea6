"""Convolution, 2 x 2 max pooling and ReLU in one, as matrix products: fast for few input channels.

Patches are laid out by image rows, ``rows[y, c, j, b, x] = image[b, c, y, x + j]``, so that the
columns of output row y are the contiguous block ``rows[y : y + k]``. This copies k times less than
im2col. Even and odd x are stored separately, so that the four outputs of a pooling window are in
four arrays, and pooling is their maximum.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from l0arm.gating.sharing import pure

SMALL_BATCH = 3  # below, stock operators take fewer calls


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
        if not by_products(x, self.weight):
            return F.relu(F.max_pool2d(F.conv2d(x, self.weight, self.bias), 2))
        return pooled_conv2d(x, self.weight, self.bias)


def by_products(x: Tensor, weight: Tensor) -> bool:
    """Whether matrix products are possible (pooling windows tile the output) and faster."""
    # Stock operators are better in an exported graph, and for a few images.
    if torch.compiler.is_compiling() or x.shape[0] < SMALL_BATCH:
        return False
    return all((side - weight.shape[-1]) % 2 == 1 for side in x.shape[2:])


@pure
def pooled_conv2d(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``relu(max_pool2d(conv2d(x, weight, bias), 2))`` by matrix products, channels last."""
    return pooled(convolved(rows_of(x, weight.shape[-1]), weight), bias, x)


def rows_of(x: Tensor, k: int) -> Tensor:
    """``rows[y, c, j, parity, b, x2] = x[b, c, y, 2 x2 + parity + j]`` as (height, c k, n)."""
    w = (x.shape[3] - k + 1) // 2
    by_row = _autocast(x).permute(2, 1, 0, 3)  # y, c, b, x
    halves = [by_row[..., parity::2].contiguous() for parity in (0, 1)]  # then runs of w are copied
    starts = [parity + j for j in range(k) for parity in (0, 1)]
    rows = torch.stack([halves[s % 2][..., s // 2 : s // 2 + w] for s in starts], dim=2)
    return rows.view(rows.shape[0], -1, 2 * rows.shape[3] * w)


def convolved(rows: Tensor, weight: Tensor) -> Tensor:
    """The convolution, before pooling, as (output row, filter, n)."""
    kernel = _autocast(weight).transpose(1, 2).flatten(1)  # (filters, k c k), ordered like rows
    outputs: Tensor = _RowProduct.apply(rows, kernel, weight.shape[-1])  # type: ignore[no-untyped-call]
    return outputs


def pooled(outputs: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """``relu(max_pool2d(outputs + bias))`` of a convolution of x, channels last."""
    filters, w = outputs.shape[1], outputs.shape[2] // (2 * x.shape[0])
    phases = outputs.view(-1, 2, filters, 2, x.shape[0] * w)
    top: Tensor = _MaxOfPhases.apply(phases)  # type: ignore[no-untyped-call]
    # Bias and ReLU commute with the maximum: a quarter of the work.
    positive = F.relu(top + _autocast(bias)[:, None]).view(-1, filters, x.shape[0], w)
    images: Tensor = _ByImage.apply(positive)  # type: ignore[no-untyped-call]
    return images


def _autocast(x: Tensor) -> Tensor:
    """Cast as autocast does for conv2d."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


class _RowProduct(torch.autograd.Function):
    """``out[y] = kernel @ rows[y : y + k]`` for every output row y, without copying the rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, kernel: Tensor, k: int) -> Tensor:
        ctx.save_for_backward(rows, kernel)
        ctx.k = k
        columns = _overlapping(rows, k)
        return torch.bmm(kernel.expand(columns.shape[0], -1, -1), columns)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None]:
        rows, kernel = ctx.saved_tensors
        d_kernel = torch.bmm(gradient, _overlapping(rows, ctx.k).transpose(1, 2)).sum(0)
        if not ctx.needs_input_grad[0]:  # images have no gradient
            return None, d_kernel, None
        d_rows, width = torch.zeros_like(rows).flatten(0, 1), rows.shape[1]
        for y, at_y in enumerate(gradient):
            d_rows[y * width : (y + ctx.k) * width].addmm_(kernel.t(), at_y)
        return d_rows.view_as(rows), d_kernel, None


def _overlapping(rows: Tensor, k: int) -> Tensor:
    """A view of (height, c k, n) as (height - k + 1, k c k, n): k rows starting at every row."""
    height, depth, n = rows.shape
    return rows.as_strided((height - k + 1, k * depth, n), (depth * n, n, 1))


class _ByImage(torch.autograd.Function):
    """From (h, filters, batch, w) to (batch, filters, h, w), channels last.

    The gradient comes back contiguous, so that the operations before this one run along rows.
    """

    @staticmethod
    def forward(ctx: Any, positive: Tensor) -> Tensor:
        return positive.permute(2, 1, 0, 3).contiguous(memory_format=torch.channels_last)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.permute(2, 1, 0, 3).contiguous()


class _MaxOfPhases(torch.autograd.Function):
    """Maximum over dims 1 and 3 of (h, 2, filters, 2, n); the first of ties has the gradient."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        a, b, c, d = _phases(y)
        upper, lower = torch.maximum(a, b), torch.maximum(c, d)
        top = torch.maximum(upper, lower)
        ctx.save_for_backward(y, upper, lower, top)
        return top

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        y, upper, lower, top = ctx.saved_tensors
        out = torch.empty_like(y)
        d_upper, d_lower, hit = (torch.empty_like(top) for _ in range(3))
        (a, _, c, _), (d_a, d_b, d_c, d_d) = _phases(y), _phases(out)
        for first, larger, d_first, d_second, d_larger in (
            (upper, top, d_upper, d_lower, gradient),
            (a, upper, d_a, d_b, d_upper),
            (c, lower, d_c, d_d, d_lower),
        ):
            torch.eq(first, larger, out=hit)  # 0 or 1 in the same dtype: faster than bool
            torch.mul(d_larger, hit, out=d_first)
            torch.sub(d_larger, d_first, out=d_second)
        return out


def _phases(y: Tensor) -> list[Tensor]:
    return [y[:, row, :, column] for row in (0, 1) for column in (0, 1)]
