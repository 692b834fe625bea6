"""From a data set in memory to what a network is trained on: batches, augmentation, floats."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

__all__ = ["PREPROCESS", "Preprocess", "batches", "crop_and_flip", "shift", "to_float"]


def batches(n: int, size: int, generator: torch.Generator | None = None) -> Iterator[Tensor]:
    """Every index below ``n`` once, in random order; the last batch may be smaller.

    >>> [len(index) for index in batches(10, 4)]
    [4, 4, 2]
    """
    if n < 1 or size < 1:
        raise ValueError(f"batches of {size} out of {n}: both must be at least 1")
    return iter(torch.split(torch.randperm(n, generator=generator), size))


def to_float(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """``(x / 255 - mean) / std`` for each channel of uint8 ``(N, C, H, W)``.

    >>> to_float(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), mean=[0.5], std=[0.25])
    tensor([[[[-2.,  2.]]]])
    """
    channels = images.shape[1]
    if not channels == len(mean) == len(std):
        raise ValueError(
            f"images have {channels} channels, but there are {len(mean)} means and {len(std)} "
            "standard deviations; give one for each channel"
        )
    shape = (1, channels, 1, 1)
    center = torch.tensor(mean, dtype=torch.float32, device=images.device).view(shape)
    scale = torch.tensor(std, dtype=torch.float32, device=images.device).view(shape)
    return images.float().div_(255).sub_(center).div_(scale)


@dataclass(frozen=True)
class Preprocess:
    """Mean and standard deviation of each channel, of pixels scaled to [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """Images as float32, centred and scaled."""
        return to_float(images, self.mean, self.std)


_UNIT = Preprocess((0.0,), (1.0,))  # [0, 1], as MNIST is fed to LeNet

# Means and deviations over CIFAR's training images as the Wide ResNet code has them
# (https://github.com/szagoruyko/wide-residual-networks, pytorch/main.py); those of CIFAR-100 are
# the companions in common use.
PREPROCESS: Mapping[str, Preprocess] = MappingProxyType(
    {
        "mnist": _UNIT,
        "mnist-mini": _UNIT,
        "fashion-mnist": _UNIT,
        "cifar10": Preprocess(
            (125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)
        ),
        "cifar100": Preprocess(
            (129.3 / 255, 124.1 / 255, 112.4 / 255), (68.2 / 255, 65.4 / 255, 70.4 / 255)
        ),
    }
)


def crop_and_flip(images: Tensor, generator: torch.Generator | None = None, pad: int = 4) -> Tensor:
    """A random window of each image enlarged by ``pad`` on all sides, mirrored with probability ½.

    The border is a reflection of the image without its edge pixel, as in Wide ResNet's code
    (``padding_mode='reflect'``), where others pad with zeros.
    """
    rows, columns = _windows(images, generator, pad)
    source = generator.device if generator is not None else torch.device("cpu")
    mirrored = torch.randint(2, (len(images), 1), generator=generator, device=source).bool()
    columns = torch.where(mirrored.to(images.device), columns.flip(1), columns)
    return _gathered(images, rows, columns)


def shift(images: Tensor, generator: torch.Generator | None = None, pixels: int = 1) -> Tensor:
    """Each image moved by up to so many pixels up or down and to a side; borders are reflected."""
    return _gathered(images, *_windows(images, generator, pixels))


def _windows(images: Tensor, generator: torch.Generator | None, pad: int) -> tuple[Tensor, Tensor]:
    """Rows and columns of each image that a random window shows, from -pad to +pad off the image.

    The random numbers are drawn on the generator's device.
    """
    height, width = images.shape[2:]
    if not 0 <= pad < min(height, width):
        raise ValueError(
            f"images of {height} x {width} cannot move by up to {pad} pixels; give a number from 0 "
            f"to {min(height, width) - 1}"
        )
    source = generator.device if generator is not None else torch.device("cpu")
    size = (2, len(images), 1)
    offsets = torch.randint(-pad, pad + 1, size, generator=generator, device=source)
    top, left = offsets.to(images.device)
    rows = _reflect(top + torch.arange(height, device=images.device), height)
    return rows, _reflect(left + torch.arange(width, device=images.device), width)


def _gathered(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The batch in one gather, on any dtype and device."""
    count, channels, _, width = images.shape
    window = (rows[:, :, None] * width + columns[:, None, :]).view(count, 1, -1)
    flat = images.reshape(count, channels, -1)
    return flat.gather(2, window.expand(-1, channels, -1)).view(images.shape)


def _reflect(position: Tensor, size: int) -> Tensor:
    """Fold positions outside 0 … size - 1 back: -1 is 1, and size is size - 2."""
    return (size - 1) - ((size - 1) - position.abs()).abs()
