"""The reference: the three networks dense, as a user would write them, in stock PyTorch and NCHW.

Nothing here is tuned, and nothing comes from ``l0arm``: a ratio against these says what a user
gains who has this code today.
"""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn


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
