"""The four networks. ``width`` scales all of them, for narrower networks from scratch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _conv(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution without bias, and its batch norm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _conv(inputs, outputs, 3, stride)
        self.second = _conv(outputs, outputs, 3)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _conv(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both ways."""
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


class ResNet20(nn.Module):
    """Three stages of three blocks with 32, 64 and 128 filters, on maps of 8 x 8, 4 x 4, 2 x 2.

    The stem halves the image twice, so that an epoch takes seconds on one core.
    """

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        sizes = [max(1, round(width * size)) for size in (32, 64, 128)]
        self.stem = _conv(3, sizes[0], 3, 2)
        blocks, inputs = list[nn.Module](), sizes[0]
        for stage, outputs in enumerate(sizes):
            for number in range(3):
                blocks.append(Block(inputs, outputs, 2 if stage and not number else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the ten classes."""
        x = F.max_pool2d(F.relu(self.stem(x)), 2)
        out: Tensor = self.head(self.blocks(x).mean((2, 3)))
        return out


def vgg(width: float = 1.0) -> nn.Module:
    """Six convolutions with 32 to 128 filters, pooling after each two, and two linear layers."""
    layers, inputs, stride = list[nn.Module](), 3, 2
    for size in (32, 64, 128):
        outputs = max(1, round(width * size))
        for _ in range(2):
            layers += [_conv(inputs, outputs, 3, stride), nn.ReLU()]
            inputs, stride = outputs, 1
        layers.append(nn.MaxPool2d(2))
    hidden = max(1, round(width * 128))
    layers += [nn.Flatten(), nn.Linear(4 * inputs, hidden), nn.ReLU(), nn.Linear(hidden, 10)]
    return nn.Sequential(*layers)


def depthwise(width: float = 1.0) -> nn.Module:
    """Five depthwise-separable blocks, for images of 28 x 28."""
    inputs = max(1, round(width * 48))
    layers: list[nn.Module] = [_conv(1, inputs, 3, 2), nn.ReLU()]
    for size, stride in ((96, 2), (96, 1), (192, 2), (192, 1), (192, 1)):
        outputs = max(1, round(width * size))
        layers += [_conv(inputs, inputs, 3, stride, inputs), nn.ReLU()]
        layers += [_conv(inputs, outputs, 1), nn.ReLU()]
        inputs = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10)]
    return nn.Sequential(*layers)


class Attention(nn.Module):
    """Causal self-attention with a layer for each of query, key and value."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(size, size), nn.Linear(size, size)
        self.value, self.out = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        """Every position reads the positions before it."""
        batch, length, _ = x.shape
        q, k, v = (
            layer(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(y.transpose(1, 2).reshape(batch, length, -1))
        return out


class Layer(nn.Module):
    """Attention and a two-layer network, each with a shortcut, layer norm first."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(size), Attention(size, heads)
        self.norm2, self.up = nn.LayerNorm(size), nn.Linear(size, 4 * size)
        self.down = nn.Linear(4 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both parts and the shortcut."""
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class LanguageModel(nn.Module):
    """A causal transformer over characters: two layers of size 128 with eight heads."""

    def __init__(self, width: float = 1.0, symbols: int = 97, context: int = 64) -> None:
        super().__init__()
        size = 8 * max(1, round(width * 16))  # eight heads of equal size
        self.symbol, self.place = nn.Embedding(symbols, size), nn.Embedding(context, size)
        self.layers = nn.Sequential(Layer(size, 8), Layer(size, 8))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, symbols)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next character at every position."""
        places = torch.arange(x.shape[1], device=x.device)
        out: Tensor = self.head(self.norm(self.layers(self.symbol(x) + self.place(places))))
        return out
