"""From a data set in memory to the input of a network: batches, augmentation, normalisation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Preprocess", "batches", "crop_and_flip", "random_offsets", "shifted", "to_float"]


def batches(n: int, size: int, generator: torch.Generator | None = None) -> Iterator[Tensor]:
    """Random batches of indices that cover 0 … n - 1 once. The last batch may be smaller.

    Args:
        n: The number of images.
        size: The number of images in a batch.
        generator: The source of randomness. None uses torch's default generator.

    Returns:
        An iterator over int64 tensors of indices.

    Raises:
        ValueError: ``n`` or ``size`` is below 1.

    Example:
        >>> [len(index) for index in batches(10, 4)]
        [4, 4, 2]
    """
    if n < 1 or size < 1:
        raise ValueError(f"batches of {size} out of {n}: both must be at least 1")
    return iter(torch.split(torch.randperm(n, generator=generator), size))


def to_float(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Normalise images: ``(x / 255 - mean) / std`` for each channel.

    Args:
        images: uint8 ``(N, C, H, W)``. They are not changed.
        mean: The mean of each channel, of pixels scaled to [0, 1].
        std: The standard deviation of each channel, likewise.

    Returns:
        float32 ``(N, C, H, W)``.

    Raises:
        ValueError: There is not one mean and one standard deviation for each channel.

    Example:
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
    """Normalisation of images by the mean and standard deviation of each channel.

    Attributes:
        mean: The mean of each channel, of pixels scaled to [0, 1].
        std: The standard deviation of each channel, likewise.

    Example:
        >>> to_unit_interval = Preprocess(mean=(0.0,), std=(1.0,))
        >>> to_unit_interval(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[0., 1.]]]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise uint8 images to float32."""
        return to_float(images, self.mean, self.std)


def crop_and_flip(images: Tensor, generator: torch.Generator | None = None, pad: int = 4) -> Tensor:
    """Augment images: pad, crop a random window, and mirror it with probability 1/2.

    The border is a reflection of the image without its edge pixel, as in Wide ResNet's code
    (``padding_mode='reflect'``). Others pad with zeros.

    Args:
        images: ``(N, C, H, W)`` of any type, on any device.
        generator: The source of randomness. None uses torch's default generator.
        pad: How many pixels are added on each side.

    Returns:
        New images of the same shape and type.

    Raises:
        ValueError: ``pad`` is negative or not smaller than the image.

    Example:
        >>> images = torch.arange(9, dtype=torch.uint8).view(1, 1, 3, 3)
        >>> crop_and_flip(images, torch.Generator().manual_seed(0), pad=1).shape
        torch.Size([1, 1, 3, 3])
    """
    rows, columns = _windows(images, random_offsets(images, generator, pad))
    source = generator.device if generator is not None else torch.device("cpu")
    mirrored = torch.randint(2, (len(images), 1), generator=generator, device=source).bool()
    columns = torch.where(mirrored.to(images.device), columns.flip(1), columns)
    return _gathered(images, rows, columns)


def random_offsets(
    images: Tensor, generator: torch.Generator | None = None, pixels: int = 1
) -> Tensor:
    """Draw an offset for each image, for ``shifted``.

    Args:
        images: ``(N, C, H, W)`` of any type, on any device.
        generator: The source of randomness. None uses torch's default generator.
        pixels: The largest offset, up or down and left or right.

    Returns:
        int64 ``(2, N)``, rows and columns from ``-pixels`` to ``pixels``, on the images' device.
        They are drawn on the device of the generator.

    Raises:
        ValueError: ``pixels`` is negative or not smaller than the image.

    Example:
        >>> random_offsets(torch.zeros(5, 1, 3, 3), torch.Generator().manual_seed(0)).shape
        torch.Size([2, 5])
    """
    height, width = images.shape[2:]
    if not 0 <= pixels < min(height, width):
        raise ValueError(
            f"images of {height} x {width} cannot move by up to {pixels} pixels; give a number "
            f"from 0 to {min(height, width) - 1}"
        )
    source = generator.device if generator is not None else torch.device("cpu")
    size = (2, len(images))
    drawn = torch.randint(-pixels, pixels + 1, size, generator=generator, device=source)
    return drawn.to(images.device)


def shifted(images: Tensor, offsets: Tensor) -> Tensor:
    """Augment images: move each by its offset. The border is reflected.

    Args:
        images: ``(N, C, H, W)`` of any type, on any device.
        offsets: int64 ``(2, N)``. A pixel at row ``r`` and column ``c`` of the new image is the one
            at ``r + offsets[0]`` and ``c + offsets[1]``.

    Returns:
        New images of the same shape and type.

    Example:
        >>> images = torch.arange(9, dtype=torch.uint8).view(1, 1, 3, 3)
        >>> shifted(images, torch.tensor([[1], [0]])).flatten(1).tolist()
        [[3, 4, 5, 6, 7, 8, 3, 4, 5]]
    """
    return _gathered(images, *_windows(images, offsets))


def _windows(images: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns that each image shows when its window is at its offset."""
    height, width = images.shape[2:]
    top, left = offsets[:, :, None]
    rows = _reflect(top + torch.arange(height, device=images.device), height)
    return rows, _reflect(left + torch.arange(width, device=images.device), width)


def _gathered(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The pixels at these rows and columns of each image, in one gather."""
    count, channels, _, width = images.shape
    window = (rows[:, :, None] * width + columns[:, None, :]).view(count, 1, -1)
    flat = images.reshape(count, channels, -1)
    return flat.gather(2, window.expand(-1, channels, -1)).view(images.shape)


def _reflect(position: Tensor, size: int) -> Tensor:
    """Reflect positions outside 0 … size - 1: -1 becomes 1, and size becomes size - 2."""
    return (size - 1) - ((size - 1) - position.abs()).abs()
