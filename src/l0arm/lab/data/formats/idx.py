"""IDX, the format of MNIST: a magic number, big-endian sizes, then the bytes.

The magic number 0 0 8 d stands for unsigned bytes in d dimensions
(http://yann.lecun.com/exdb/mnist/).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from l0arm.lab.data.dataset import DataError, Part

__all__ = ["Idx", "read_idx"]


@dataclass(frozen=True)
class Idx:
    """Two files for each part: the images, then the labels."""

    def parse(self, contents: Mapping[str, bytes], classes: int) -> Part:
        """Parse the two files of a part."""
        (image_file, images), (label_file, labels) = contents.items()
        part = Part(
            read_idx(images, 3, image_file)[:, None],
            read_idx(labels, 1, label_file).astype(np.int64),
        )
        return part.checked(classes, label_file)


def read_idx(content: bytes, dimensions: int, where: str) -> npt.NDArray[np.uint8]:
    """The array of bytes in an IDX file.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), 1, "labels")
    array([7, 8, 9], dtype=uint8)
    """
    start = 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) < start:
        raise DataError(
            f"{where}: begins with {content[:4].hex()}, but an IDX file of bytes in {dimensions} "
            f"dimensions begins with 000008{dimensions:02x}; replace it with the original"
        )
    shape = np.frombuffer(content[4:start], ">u4").tolist()
    if len(content) - start != math.prod(shape):
        raise DataError(
            f"{where}: announces {shape}, {math.prod(shape):,} bytes, but {len(content) - start:,} "
            "follow; replace it with the original"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()
