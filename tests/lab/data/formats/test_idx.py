"""IDX files are read as their definition says; others are refused."""

from types import SimpleNamespace

import numpy as np
import pytest

from l0arm.lab.data import DataError
from l0arm.lab.data.formats.idx import Idx, read_idx

IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


def test_bytes_by_hand() -> None:
    # magic 0x00000803, then 1, 2, 2 as big-endian numbers, then four pixels
    content = bytes.fromhex("00000803 00000001 00000002 00000002 0a0b0c0d")
    assert read_idx(content, 3, "file").tolist() == [[[10, 11], [12, 13]]]


def test_images_get_a_channel_and_labels_are_numbers(formats: SimpleNamespace) -> None:
    files = {"images": formats.idx(IMAGES), "labels": formats.idx(np.array([9, 0]))}
    images, labels = Idx().parse(files, 10)
    assert np.array_equal(images, IMAGES[:, None])
    assert (labels.tolist(), labels.dtype) == ([9, 0], np.int64)
    assert images.flags.writeable


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "file: begins with , but .* 00000803"),
        (bytes.fromhex("00000801 00000001 05"), "file: begins with 00000801"),
        (bytes.fromhex("00000803 00000001"), "file: begins with 00000803"),
        (
            bytes.fromhex("00000803 00000001 00000002 00000002 0a0b0c"),
            r"file: announces \[1, 2, 2\], 4 bytes, but 3 follow",
        ),
        (
            bytes.fromhex("00000803 00000001 00000002 00000002 0a0b0c0d0e"),
            r"file: announces \[1, 2, 2\], 4 bytes, but 5 follow",
        ),
    ],
)
def test_what_is_no_such_file_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_idx(content, 3, "file")


@pytest.mark.parametrize(
    ("labels", "message"),
    [([0], "labels: 2 images, but 1 labels"), ([0, 10], r"labels: .* from 0 to 10, .* 0 … 9")],
)
def test_labels_must_fit(labels: list[int], message: str, formats: SimpleNamespace) -> None:
    files = {"images": formats.idx(IMAGES), "labels": formats.idx(np.array(labels))}
    with pytest.raises(DataError, match=message):
        Idx().parse(files, 10)
