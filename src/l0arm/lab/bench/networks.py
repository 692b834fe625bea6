"""What is measured: dense reference networks, and the states of the gates in each row.

The reference networks are written as a user would write them, in stock PyTorch and NCHW. They are
not tuned and use nothing of ``l0arm``: a ratio against them is what a user of such code gains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm import Gated, ScaledSigmoid
from l0arm.costs import FlopsMeter

CLOSED, OPEN = 0.001, 0.999

State = Callable[[Gated], Tensor]  # the open probability of every gate


class PlainMLP(nn.Module):
    """784-300-100-10 with ReLU."""

    def __init__(self, hidden: tuple[int, int] = (300, 100)) -> None:
        super().__init__()
        self.fc1 = nn.Linear(784, hidden[0])
        self.fc2 = nn.Linear(*hidden)
        self.fc3 = nn.Linear(hidden[1], 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc1(x.flatten(1)))
        x = F.relu(self.fc2(x))
        logits: Tensor = self.fc3(x)
        return logits


class PlainLeNet5(nn.Module):
    """LeNet-5-Caffe, 20-50-800-500."""

    def __init__(self, widths: tuple[int, int, int] = (20, 50, 500)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, widths[0], 5)
        self.conv2 = nn.Conv2d(widths[0], widths[1], 5)
        self.fc1 = nn.Linear(widths[1] * 16, widths[2])
        self.fc2 = nn.Linear(widths[2], 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(x)
        return logits


class PlainBlock(nn.Module):
    """BatchNorm, ReLU, convolution, twice, around a shortcut."""

    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(narrow)
        self.conv1 = nn.Conv2d(narrow, wide, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(wide)
        self.conv2 = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        same = narrow == wide and stride == 1
        self.shortcut = None if same else nn.Conv2d(narrow, wide, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        out: Tensor = self.conv2(F.relu(self.norm2(self.conv1(active))))
        return out + (x if self.shortcut is None else self.shortcut(active))


class PlainWideResNet(nn.Module):
    """WRN-28-10."""

    def __init__(self, widths: tuple[int, int, int, int] = (16, 160, 320, 640)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        blocks: list[nn.Module] = []
        for stage, (narrow, wide) in enumerate(pairwise(widths)):
            blocks.append(PlainBlock(narrow, wide, stride=1 if stage == 0 else 2))
            blocks += [PlainBlock(wide, wide, stride=1) for _ in range(3)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(widths[3])
        self.fc = nn.Linear(widths[3], 10)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.blocks(self.conv1(x))))
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


class PlainResNet20(nn.Module):
    """Three stages of three blocks with 16, 32 and 64 filters, for images of 32 x 32."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        widths = [width, width, 2 * width, 4 * width]
        blocks: list[nn.Module] = []
        for stage, (narrow, wide) in enumerate(pairwise(widths)):
            blocks.append(PlainBlock(narrow, wide, stride=1 if stage == 0 else 2))
            blocks += [PlainBlock(wide, wide, stride=1) for _ in range(2)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(widths[-1])
        self.fc = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.blocks(self.stem(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class PlainLayer(nn.Module):
    """Causal attention and two linear layers, each with a shortcut, layer norm first."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.query, self.key = nn.Linear(size, size), nn.Linear(size, size)
        self.value, self.out = nn.Linear(size, size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        normed = self.norm1(x)
        q, k, v = (
            layer(normed).view(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        read = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(read.transpose(1, 2).reshape(batch, length, -1))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class PlainTransformer(nn.Module):
    """A causal transformer over characters: four layers of size 128 with eight heads."""

    def __init__(self, size: int = 128, symbols: int = 97, context: int = 64) -> None:
        super().__init__()
        self.symbol, self.place = nn.Embedding(symbols, size), nn.Embedding(context, size)
        self.layers = nn.Sequential(*(PlainLayer(size, 8) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, symbols)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        logits: Tensor = self.head(self.norm(self.layers(self.symbol(x) + self.place(places))))
        return logits


def set_gates(gated: Gated, state: State) -> None:
    """Write the phi that gives these probabilities; training with ``gate_lr=0`` keeps it."""
    gated.phi.data.copy_(ScaledSigmoid().inverse(state(gated)))


def uniform(p: float) -> State:
    """Every gate is open with probability p."""
    return lambda gated: torch.full_like(gated.phi.data, min(max(p, CLOSED), OPEN))


def half_of_the_macs(x: Tensor) -> State:
    """The probability, the same for all gates, at which half of the MACs are expected.

    If gates reach less than half of the MACs, those of a probability of 1/2.
    """

    def state(gated: Gated) -> Tensor:
        meter, low, high = FlopsMeter(gated, x), 0.5, OPEN
        for _ in range(12):
            middle = (low + high) / 2
            set_gates(gated, uniform(middle))
            flops = meter()
            low, high = (middle, high) if flops.inference < flops.dense / 2 else (low, middle)
        return uniform(low)(gated)

    return state


def initial(gated: Gated) -> Tensor:
    """The probabilities at which training starts."""
    return torch.cat([torch.full((g.units,), g.initial) for g in gated.groups])


def converged(*widths: int) -> State:
    """This many units of every group are open, drawn once; the others are closed."""

    def state(gated: Gated) -> Tensor:
        units = [group.units for group in gated.groups]
        return _polarised(units, [_draw(*pair) for pair in zip(units, widths, strict=True)])

    return state


def half_open(gated: Gated) -> Tensor:
    """Half of the units of every group are open, the others closed."""
    return converged(*(group.units // 2 for group in gated.groups))(gated)


def lenet5_converged(gated: Gated) -> Tensor:
    """6-10-39-11, where the 39 inputs of fc1 read the 10 open filters, 3 or 4 outputs of each.

    A network trained to this size looks like this: an input from a closed filter is always zero.
    """
    filters = _draw(50, 10)
    outputs = [16 * f + position for position in _draw(16, 4) for f in filters][:39]
    return _polarised([20, 50, 800, 500], [_draw(20, 6), filters, outputs, _draw(500, 11)])


def _draw(units: int, number: int) -> list[int]:
    """Indices of units, the same in every run."""
    order = torch.randperm(units, generator=torch.Generator().manual_seed(units))
    return sorted(order[:number].tolist())


def _polarised(units: Sequence[int], opened: Sequence[list[int]]) -> Tensor:
    parts = [torch.full((n,), CLOSED) for n in units]
    for part, members in zip(parts, opened, strict=True):
        part[members] = OPEN
    return torch.cat(parts)
