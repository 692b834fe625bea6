"""Convolution, pooling and ReLU by a matrix product equal the stock operators."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from l0arm.models.pooled_conv import SMALL_BATCH, PooledConv2d


def stock(layer: PooledConv2d, x: Tensor) -> Tensor:
    return F.relu(F.max_pool2d(F.conv2d(x, layer.weight, layer.bias), 2))


@pytest.mark.parametrize("images", [1, 2, SMALL_BATCH, 7])
@pytest.mark.parametrize(("channels", "side", "k"), [(1, 28, 5), (3, 12, 3), (4, 8, 1)])
def test_values_and_gradients_are_those_of_the_stock_operators(channels, side, k, images):
    layer = PooledConv2d(channels, 6, k).double()
    x = torch.randn(images, channels, side, side, dtype=torch.float64, requires_grad=True)
    wanted = [x, layer.weight, layer.bias]
    fast, slow = layer(x), stock(layer, x)
    weights = torch.randn_like(slow)
    assert torch.allclose(fast, slow, atol=1e-12, rtol=0)
    for a, b in zip(
        torch.autograd.grad((fast * weights).sum(), wanted),
        torch.autograd.grad((slow * weights).sum(), wanted),
        strict=True,
    ):
        assert torch.allclose(a, b, atol=1e-10, rtol=0)


def test_of_equal_outputs_the_first_gets_the_gradient():
    """A blank image: all four candidates are equal, as in max_pool2d the first one counts."""
    layer = PooledConv2d(1, 2, 3).double()
    x = torch.zeros(SMALL_BATCH, 1, 6, 6, dtype=torch.float64, requires_grad=True)
    layer.bias.data.fill_(1.0)
    (fast,) = torch.autograd.grad(layer(x).sum(), x)
    (slow,) = torch.autograd.grad(stock(layer, x).sum(), x)
    assert torch.allclose(fast, slow, atol=1e-12, rtol=0)


def test_a_small_batch_gives_the_same():
    layer, x = PooledConv2d(1, 4, 5), torch.rand(SMALL_BATCH, 1, 28, 28)
    assert torch.allclose(layer(x)[:2], layer(x[:2]), atol=1e-6)


def test_the_output_is_channels_last():
    out = PooledConv2d(1, 4, 5)(torch.rand(SMALL_BATCH, 1, 28, 28))
    assert out.is_contiguous(memory_format=torch.channels_last)


def test_odd_sides_take_the_stock_operators():
    layer, x = PooledConv2d(1, 2, 5), torch.rand(SMALL_BATCH, 1, 27, 27)
    assert torch.equal(layer(x), stock(layer, x))


@pytest.mark.parametrize("images", [1, SMALL_BATCH])
def test_it_runs_under_bf16_autocast(images):
    layer, x = PooledConv2d(1, 4, 5), torch.rand(images, 1, 28, 28)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16
    assert layer.weight.grad.dtype == torch.float32
    assert torch.allclose(out.float(), stock(layer, x), atol=0.02)
