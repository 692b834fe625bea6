"""Networks whose maps are reshaped in odd ways, drawn at random from a seed."""

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def flat_and_back(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return x.flatten(1).tanh().view(b, c, h, w)


def channels_last(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return F.gelu(x.movedim(1, -1).reshape(b * h * w, c)).view(b, h, w, c).permute(0, 3, 1, 2)


def halves_in_turn(x: Tensor) -> Tensor:
    return torch.stack(x.chunk(2, 1), 2).flatten(1, 2)


def halves_swapped(x: Tensor) -> Tensor:
    return x.unflatten(1, (2, -1)).flip(1).flatten(1, 2)


def pairs_averaged(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return x.reshape(b, c // 2, 2, h, w).mean(2)


def pairs_maximum(x: Tensor) -> Tensor:
    return x.unflatten(1, (-1, 2)).amax(2)


def shuffled_pixels(x: Tensor) -> Tensor:
    return F.pixel_unshuffle(x, 2).repeat_interleave(2, 2).repeat_interleave(2, 3)


def space_to_depth(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    y = x.view(b, c, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(b, 4 * c, h // 2, -1)
    return F.interpolate(y, scale_factor=2.0)


def every_second(x: Tensor) -> Tensor:
    return x[:, ::2] + x[:, 1::2]


def twice(x: Tensor) -> Tensor:
    return x.repeat(1, 2, 1, 1)


def each_twice(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, 1)


def rolled(x: Tensor) -> Tensor:
    return x.roll(1, 2).transpose(2, 3).contiguous()


def turned(x: Tensor) -> Tensor:
    return torch.einsum("bchw->bcwh", x).unsqueeze(2).squeeze(2)


def rows_apart(x: Tensor) -> Tensor:
    return torch.stack([row.relu() for row in x.unbind(2)], 2)


def padded(x: Tensor) -> Tensor:
    return F.pad(x, (1, 1, 0, 0))[..., 1:-1]


def unfolded(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return F.unfold(x, 3, padding=1).view(b, c, 9, h, w).amax(2)


RESHAPES: list[Callable[[Tensor], Tensor]] = [
    *(flat_and_back, channels_last, halves_in_turn, halves_swapped, pairs_averaged, pairs_maximum),
    *(shuffled_pixels, space_to_depth, every_second, twice, each_twice, rolled, turned),
    *(rows_apart, padded, unfolded),
]


class RandomReshapes(nn.Module):
    """Convolutions with one or two reshapes after each, and patches or pixels for a head."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        pick = random.Random(seed)
        self.layers, self.chosen, width = nn.ModuleList(), [], 3
        for _ in range(pick.choice([2, 3])):
            layer = nn.Conv2d(width, pick.choice([8, 12]), pick.choice([1, 3]), padding="same")
            reshapes = pick.sample(RESHAPES, pick.choice([1, 2]))
            self.layers.append(layer)
            self.chosen.append(reshapes)
            width = self._reshaped(layer(torch.zeros(1, width, 4, 4)), reshapes).shape[1]
        self.patches = pick.random() < 0.5
        self.head = nn.Linear(width * (4 if self.patches else 16), 3)

    @staticmethod
    def _reshaped(x: Tensor, reshapes: list[Callable[[Tensor], Tensor]]) -> Tensor:
        for reshape in reshapes:
            x = reshape(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        for layer, reshapes in zip(self.layers, self.chosen, strict=True):
            x = self._reshaped(F.silu(layer(x)) + 0.1, reshapes)
        b, c, _, _ = x.shape
        if self.patches:
            patches = x.view(b, c, 2, 2, 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(b, 4, 4 * c)
            return self.head(patches).tanh().mean(1)
        return self.head(x.reshape(b, -1))
