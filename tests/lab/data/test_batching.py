"""Batches cover everything once; windows are what padding and cropping image by image gives."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from l0arm.lab.data import (
    PREPROCESS,
    Preprocess,
    batches,
    crop_and_flip,
    random_offsets,
    shifted,
    to_float,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_every_index_comes_once_in_random_order() -> None:
    parts = list(batches(103, 10, generator()))
    assert [len(part) for part in parts] == [10] * 10 + [3]
    order = torch.cat(parts).tolist()
    assert sorted(order) == list(range(103))
    assert order != sorted(order)


def test_the_order_follows_the_generator() -> None:
    first, again, other = (torch.cat(list(batches(50, 7, generator(s)))) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    one = generator(1)
    epochs = [torch.cat(list(batches(50, 7, one))) for _ in range(2)]
    assert not torch.equal(*epochs)


@pytest.mark.parametrize(("n", "size"), [(0, 1), (1, 0), (5, -1)])
def test_no_batches_of_nothing(n: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"batches of {size} out of {n}"):
        batches(n, size)


def test_to_float_by_hand() -> None:
    images = torch.tensor([[[[0]], [[51]], [[255]]]], dtype=torch.uint8)
    x = to_float(images, mean=(0.0, 0.5, 0.25), std=(1.0, 0.5, 0.25))
    assert x.dtype == torch.float32
    assert x.flatten().tolist() == pytest.approx([0.0, (0.2 - 0.5) / 0.5, 3.0])
    assert images.flatten().tolist() == [0, 51, 255]  # left as they were


def test_mnist_is_scaled_to_one() -> None:
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    assert torch.equal(PREPROCESS["mnist"](images), images.float() / 255)


def test_cifar_is_normalised_by_the_constants_of_wide_resnet() -> None:
    # An image that is the mean everywhere, and one a standard deviation above it, rounded.
    mean, above = [125, 123, 114], [188, 185, 181]
    images = torch.tensor([mean, above], dtype=torch.uint8).view(2, 3, 1, 1)
    x = PREPROCESS["cifar10"](images).flatten(1)
    assert x[0].tolist() == pytest.approx([0, 0, 0], abs=0.01)
    assert x[1].tolist() == pytest.approx([1, 1, 1], abs=0.01)


def test_channels_must_agree() -> None:
    images = torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    with pytest.raises(ValueError, match="images have 3 channels, but there are 1 means and 1"):
        Preprocess((0.0,), (1.0,))(images)


def windows(image: np.ndarray, pad: int) -> dict[bytes, tuple[int, int, bool]]:
    """Every window of an image padded by numpy, by its bytes: (row, column, mirrored)."""
    padded = np.pad(image, [(0, 0), (pad, pad), (pad, pad)], mode="reflect")
    _, height, width = image.shape
    found = {}
    for row in range(2 * pad + 1):
        for column in range(2 * pad + 1):
            window = padded[:, row : row + height, column : column + width]
            found[window.tobytes()] = (row, column, False)
            found[window[:, :, ::-1].tobytes()] = (row, column, True)
    return found


@pytest.mark.parametrize(("channels", "height", "width", "pad"), [(3, 12, 12, 4), (1, 5, 7, 2)])
def test_each_result_is_a_window_and_all_windows_are_equally_likely(
    channels: int, height: int, width: int, pad: int
) -> None:
    random = np.random.default_rng(0)
    image = random.integers(0, 256, (channels, height, width), dtype=np.uint8)
    known = windows(image, pad)
    kinds = 2 * (2 * pad + 1) ** 2
    assert len(known) == kinds  # no two windows are the same by chance
    count = 200 * kinds
    images = torch.from_numpy(image).expand(count, -1, -1, -1)
    result = crop_and_flip(images, generator(), pad)
    assert (result.shape, result.dtype) == (images.shape, torch.uint8)
    seen: dict[tuple[int, int, bool], int] = {}
    for crop in result.numpy():
        which = known[crop.tobytes()]  # KeyError: not a window of the padded image
        seen[which] = seen.get(which, 0) + 1
    # Chi squared over all windows: mean kinds - 1, variance 2 (kinds - 1); five sigma.
    statistic = sum((n - 200) ** 2 / 200 for n in seen.values()) + 200 * (kinds - len(seen))
    assert abs(statistic - (kinds - 1)) < 5 * (2 * (kinds - 1)) ** 0.5


def test_each_image_keeps_its_place_and_has_its_own_window() -> None:
    images = torch.arange(100, dtype=torch.uint8).view(100, 1, 1, 1).expand(-1, 3, 6, 6)
    assert torch.equal(crop_and_flip(images, generator()), images)
    ramp = torch.arange(36, dtype=torch.uint8).view(1, 1, 6, 6).expand(50, -1, -1, -1)
    assert len({crop.numpy().tobytes() for crop in crop_and_flip(ramp, generator())}) > 20


def test_no_padding_only_mirrors() -> None:
    images = torch.arange(12, dtype=torch.uint8).view(1, 1, 3, 4).expand(64, -1, -1, -1)
    result = crop_and_flip(images, generator(), pad=0)
    mirrored = (result == images.flip(3)).flatten(1).all(1)
    straight = (result == images).flatten(1).all(1)
    assert (mirrored | straight).all()
    assert 16 < mirrored.sum() < 48


def test_the_generator_decides() -> None:
    images = torch.randint(256, (20, 3, 8, 8), dtype=torch.uint8)
    first = crop_and_flip(images, generator(3))
    torch.manual_seed(9)
    assert torch.equal(first, crop_and_flip(images, generator(3)))
    assert not torch.equal(first, crop_and_flip(images, generator(4)))


def test_shifting_never_mirrors() -> None:
    """All nine moves by up to a pixel, equally likely: chi squared with 8 degrees, five sigma."""
    image = np.random.default_rng(1).integers(0, 256, (2, 6, 5), dtype=np.uint8)
    known = {window: which for window, which in windows(image, 1).items() if not which[2]}
    images = torch.from_numpy(image).expand(1800, -1, -1, -1)
    result = shifted(images, random_offsets(images, generator()))
    seen = Counter(known[window.tobytes()] for window in result.numpy())
    assert len(seen) == 9
    assert abs(sum((n - 200) ** 2 / 200 for n in seen.values()) - 8) < 5 * 4


@pytest.mark.parametrize("move", [crop_and_flip, random_offsets])
@pytest.mark.parametrize("pixels", [-1, 5])
def test_moves_must_be_smaller_than_the_image(move: Callable[..., Tensor], pixels: int) -> None:
    with pytest.raises(ValueError, match=f"5 x 6 cannot move by up to {pixels} pixels.*0 to 4"):
        move(torch.zeros(1, 1, 5, 6, dtype=torch.uint8), None, pixels)
