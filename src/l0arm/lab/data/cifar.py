"""CIFAR's two original formats (https://www.cs.toronto.edu/~kriz/cifar.html).

An image is 3072 bytes: 1024 red, 1024 green, 1024 blue, row by row.
"""

import numpy as np

from l0arm.lab.data.errors import DataError
from l0arm.lab.data.parts import Part, join
from l0arm.lab.data.unpickling import unpickle

__all__ = ["parse_binary", "parse_python"]

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32


def parse_python(contents: dict[str, bytes], classes: int, label: str) -> Part:
    """Batches of the python version: pickles with ``data`` and a list of labels."""
    return join([_batch(content, classes, label, file) for file, content in contents.items()])


def parse_binary(contents: dict[str, bytes], classes: int, label_bytes: int) -> Part:
    """Batches of the binary version: records of ``label_bytes``, the class last, and an image."""
    return join([_records(c, classes, label_bytes, file) for file, c in contents.items()])


def _batch(content: bytes, classes: int, label: str, file: str) -> Part:
    batch = unpickle(content, file)
    images, labels = batch.get("data"), batch.get(label)
    if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != PIXELS:
        raise DataError(
            f"{file}: 'data' is not an array (N, {PIXELS}); replace it with the original file"
        )
    if not isinstance(labels, list) or not all(type(n) is int for n in labels):
        raise DataError(
            f"{file}: '{label}' is not a list of numbers; check that it is the file of this data "
            "set"
        )
    part = Part(images.reshape(-1, *SHAPE), np.array(labels, np.int64))
    return part.checked(classes, file)


def _records(content: bytes, classes: int, label_bytes: int, file: str) -> Part:
    size = label_bytes + PIXELS
    if not content or len(content) % size:
        raise DataError(
            f"{file}: {len(content):,} bytes are not a whole number of records of {size}; replace "
            "it with the original file"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    images = records[:, label_bytes:].reshape(-1, *SHAPE).copy()
    return Part(images, records[:, label_bytes - 1].astype(np.int64)).checked(classes, file)
