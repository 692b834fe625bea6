"""IDX, the format of MNIST: a magic number, big-endian sizes, then the bytes.

0 0 8 d: unsigned bytes in d dimensions (http://yann.lecun.com/exdb/mnist/).
"""

import math

import numpy as np
import numpy.typing as npt

from l0arm.lab.data.errors import DataError
from l0arm.lab.data.parts import Part

__all__ = ["parse_idx", "read_idx"]


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


def parse_idx(contents: dict[str, bytes], classes: int) -> Part:
    """A part from its two files, images first."""
    (image_file, images), (label_file, labels) = contents.items()
    part = Part(
        read_idx(images, 3, image_file)[:, None],
        read_idx(labels, 1, label_file).astype(np.int64),
    )
    return part.checked(classes, label_file)
