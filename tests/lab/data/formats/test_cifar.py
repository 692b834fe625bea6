"""CIFAR's records and batches put every byte where the definition has it."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from l0arm.lab.data import DataError
from l0arm.lab.data.formats import CifarBinary, CifarPython


def record(*labels: int) -> bytes:
    """Red 1, but 9 in its second pixel; green 2; blue 3, but 7 at the end."""
    red, green, blue = bytearray([1] * 1024), bytes([2] * 1024), bytearray([3] * 1024)
    red[1], blue[-1] = 9, 7
    return bytes([*labels, *red, *green, *blue])


@pytest.mark.parametrize(("front", "size"), [((5,), 1), ((19, 5), 2)])
def test_a_binary_record(front: tuple[int, ...], size: int) -> None:
    images, labels = CifarBinary(size).parse({"a": record(*front) * 2, "b": record(*front)}, 10)
    assert labels.tolist() == [5, 5, 5]
    assert images.shape == (3, 3, 32, 32)
    assert images[0, :, 0, 0].tolist() == [1, 2, 3]
    assert images[2, 0, 0, :3].tolist() == [1, 9, 1]  # the second pixel is to the right
    assert images[1, 2, 31, 30:].tolist() == [3, 7]


@pytest.mark.parametrize("content", [b"", record(1)[:-1], record(1) + b"x", record(1, 1)])
def test_a_broken_record_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match=r"file: .* not a whole number of records of 3073"):
        CifarBinary(1).parse({"file": content}, 10)


def test_a_binary_label_out_of_range_is_refused() -> None:
    with pytest.raises(DataError, match="file: labels reach from 3 to 10, but must lie in 0 … 9"):
        CifarBinary(1).parse({"file": record(3) + record(10)}, 10)


def test_a_batch_equals_the_record_of_its_image(formats: SimpleNamespace) -> None:
    pixels = np.frombuffer(record(), np.uint8)[None]
    batch = formats.python2_pickle(pixels, [7], b"fine_labels")
    images, labels = CifarPython("fine_labels").parse({"batch": batch}, 100)
    assert np.array_equal(images, CifarBinary(1).parse({"bin": record(7)}, 10).images)
    assert labels.tolist() == [7]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"labels": [1]}, r"file: 'data' is not an array \(N, 3072\)"),
        ({"data": [1], "labels": [1]}, "file: 'data' is not an array"),
        ({"data": np.zeros((1, 3071), np.uint8), "labels": [1]}, "file: 'data' is not an array"),
        ({"data": np.zeros((1, 3072), np.uint8)}, "file: 'labels' is not a list of numbers"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": ["1"]}, "file: 'labels' is not a list"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [1, 2]}, "1 images, but 2 labels"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [-1]}, "file: labels reach from -1"),
    ],
)
def test_a_broken_batch_is_refused(batch: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        CifarPython("labels").parse({"file": pickle.dumps(batch, protocol=2)}, 10)
