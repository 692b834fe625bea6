"""Networks of images, drawn at random from a seed."""

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Standardised(nn.Conv2d):
    """Every filter has mean 0 and variance 1."""

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True)
        weight = (self.weight - mean) * torch.rsqrt(variance + 1e-4)
        return F.conv2d(x, weight, self.bias, padding=self.padding)


class NormFree(nn.Module):
    """Standardised weights, and factors of channels from their neighbours."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.one = Standardised(width, out, 1)
        self.two = Standardised(out, out, 3, padding=1)
        self.along = nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.two(F.silu(self.one(x)))
        factors = self.along(y.mean((2, 3)).unsqueeze(1)).sigmoid()
        return F.silu(y * factors.view(len(y), -1, 1, 1))


class Step(nn.Module):
    """One operation on registers of images: reads some, appends its result."""

    def __init__(self, kind: str, source: int, other: int, width: int, pick: random.Random) -> None:
        super().__init__()
        self.kind, self.source, self.other = kind, source, other
        out = pick.choice([4, 6, 8])
        if kind == "conv":
            self.layer: nn.Module = nn.Conv2d(width, out, pick.choice([1, 3]), padding="same")
        elif kind == "depthwise":
            self.layer = nn.Conv2d(width, width * pick.choice([1, 2]), 3, 1, 1, groups=width)
        elif kind == "grouped":
            self.layer = nn.Conv2d(width, 2 * out, 3, 1, 1, groups=2)
        elif kind == "transposed":
            self.layer = nn.ConvTranspose2d(width, out, 3, 1, 1)
        elif kind == "norm":
            norms = [nn.BatchNorm2d(width), nn.GroupNorm(2, width), nn.InstanceNorm2d(width)]
            self.layer = pick.choice(norms)
        elif kind == "squeeze":
            self.layer = nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, width))
        elif kind == "norm free":
            self.layer = NormFree(width, out)
        elif kind == "layer norm":
            self.layer = nn.LayerNorm(width)

    def forward(self, registers: list[Tensor]) -> Tensor:
        x, y = registers[self.source], registers[self.other]
        return getattr(self, f"_{self.kind.replace(' ', '_')}", self._layer)(x, y)

    def _layer(self, x: Tensor, _: Tensor) -> Tensor:
        return F.relu(self.layer(x)) + 0.1

    def _squeeze(self, x: Tensor, _: Tensor) -> Tensor:
        return x * torch.sigmoid(self.layer(x.mean((2, 3))))[:, :, None, None]

    def _norm_free(self, x: Tensor, _: Tensor) -> Tensor:
        return self.layer(x)

    def _layer_norm(self, x: Tensor, _: Tensor) -> Tensor:
        return self.layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def _add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + torch.tanh(y) if x.shape == y.shape else x

    def _times(self, x: Tensor, _: Tensor) -> Tensor:
        return x * torch.sigmoid(x) + x.amax((2, 3), keepdim=True)

    def _cat(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y], 1)

    def _glu(self, x: Tensor, _: Tensor) -> Tensor:
        return F.glu(x, 1)

    def _split(self, x: Tensor, _: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        return torch.cat([F.silu(right), left], 1)

    def _half(self, x: Tensor, _: Tensor) -> Tensor:
        return x[:, : x.shape[1] // 2]

    def _shuffle(self, x: Tensor, _: Tensor) -> Tensor:
        b, c, h, w = x.shape
        return x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)

    def _pool(self, x: Tensor, _: Tensor) -> Tensor:
        return F.max_pool2d(x, 3, 1, 1)


KINDS = [
    *("conv", "conv", "conv", "conv", "conv", "depthwise", "grouped", "transposed", "norm", "norm"),
    *("squeeze", "add", "add", "times", "cat", "glu", "split", "half", "shuffle", "pool"),
]
EVEN = {"glu", "split", "half", "shuffle", "grouped", "norm"}  # need an even number of channels


class RandomNet(nn.Module):
    """Three to ten operations between a first convolution and a head."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        pick = random.Random(seed)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.steps = nn.ModuleList()
        with torch.no_grad():
            registers = [self.stem(torch.rand(2, 3, 5, 5))]
            for _ in range(pick.randint(3, 10)):
                registers.append(self._grow(pick, registers))
        self.flat = pick.random() < 0.5
        width = registers[-1].shape[1] * (25 if self.flat else 1)
        self.head = nn.Linear(width, 3)

    def _grow(self, pick: random.Random, registers: list[Tensor]) -> Tensor:
        rare = ["layer norm", "norm free", "norm free"]
        kind = pick.choice([*KINDS, *rare] if pick.random() < 0.3 else KINDS)
        source = pick.choice([len(registers) - 1] * 3 + list(range(len(registers))))
        width = registers[source].shape[1]
        even = width % 2 == 0 and width >= 4
        kind = "conv" if kind in EVEN and not even else kind
        alike = [n for n, r in enumerate(registers) if r.shape == registers[source].shape]
        other = pick.choice(alike if kind == "add" else list(range(len(registers))))
        step = Step(kind, source, other, width, pick)
        self.steps.append(step)
        return step(registers)

    def forward(self, x: Tensor) -> Tensor:
        registers = [self.stem(x)]
        for step in self.steps:
            registers.append(step(registers))
        last = registers[-1]
        return self.head(last.flatten(1) if self.flat else last.mean((2, 3)))
