"""Wide residual networks (Zagoruyko & Komodakis 2016), gated as in Table 1 of the paper."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm.gating import Group, Slice


class WideResNet(nn.Module):
    """WRN-depth-widen with pre-activation blocks, for 32 x 32 images.

    Args:
        depth: The number of layers, 6 n + 4 for n blocks in each of three stages.
        widen: The factor on the widths 16, 32 and 64 of the stages.
        dropout: The dropout probability inside of each block.
        classes: The number of outputs.

    Raises:
        ValueError: The depth is not 6 n + 4.

    Example:
        >>> model = WideResNet(depth=10, widen=2)
        >>> [group.units for group in model.groups()]
        [32, 64, 128]
    """

    def __init__(
        self, depth: int = 28, widen: int = 10, dropout: float = 0.0, classes: int = 10
    ) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"depth must be 6 n + 4 (10, 16, 22, 28, ...); got {depth}")
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        self.conv1 = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        blocks = []
        for stage, (narrow, wide) in enumerate(pairwise(widths)):
            for number in range((depth - 4) // 6):
                first = number == 0
                stride = 2 if first and stage > 0 else 1
                blocks.append(Block(narrow if first else wide, wide, stride, dropout))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(widths[3])
        self.fc = nn.Linear(widths[3], classes)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)  # faster convolutions on CPUs
        x = F.relu(self.norm(self.blocks(self.conv1(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits

    def groups(self) -> tuple[Group, ...]:
        """The filters of the first convolution of each block, open at 0.7 (Sec. 5.1)."""
        return tuple(_group(self, f"blocks.{n}") for n in range(len(self.blocks)))


class Block(nn.Module):
    """x + conv2(relu(norm2(conv1(relu(norm1(x))))))."""

    def __init__(self, narrow: int, wide: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(narrow)
        self.conv1 = nn.Conv2d(narrow, wide, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(wide)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        same = narrow == wide and stride == 1
        self.shortcut = None if same else nn.Conv2d(narrow, wide, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        inner = self.dropout(F.relu(self.norm2(self.conv1(active))))
        skip: Tensor = x if self.shortcut is None else self.shortcut(active)
        residual: Tensor = self.conv2(inner)
        return skip + residual


def _group(model: WideResNet, name: str) -> Group:
    """The filters of a block's conv1. Their gates follow norm2: conv2 reads open filters only."""
    kernel = Slice(f"{name}.conv1.weight", 0)
    norm = ("weight", "bias", "running_mean", "running_var")
    return Group(
        name=f"{name}.conv1",
        units=model.get_parameter(kernel.tensor).shape[0],
        reads=(Slice(f"{name}.conv2.weight", 1),),
        makes=(kernel, *(Slice(f"{name}.norm2.{key}", 0) for key in norm)),
        counts=(kernel,),
        initial=0.7,
    )


def _initialise(model: nn.Module) -> None:
    """Initialise convolutions as He et al. do, as in the published Wide-ResNet."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
