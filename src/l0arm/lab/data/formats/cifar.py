"""CIFAR's two original formats (https://www.cs.toronto.edu/~kriz/cifar.html).

An image is 3072 bytes: 1024 red, 1024 green, 1024 blue, row by row.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from l0arm.lab.data.dataset import DataError, Part, join
from l0arm.lab.data.formats.unpickling import unpickle

__all__ = ["SHAPE", "CifarBinary", "CifarPython"]

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class CifarPython:
    """The python version: pickles with ``data`` and a list of labels."""

    label: str  # the key of the labels

    def parse(self, contents: Mapping[str, bytes], classes: int) -> Part:
        """Parse the batches of a part."""
        return join([self._batch(content, classes, file) for file, content in contents.items()])

    def _batch(self, content: bytes, classes: int, file: str) -> Part:
        batch = unpickle(content, file)
        images, labels = batch.get("data"), batch.get(self.label)
        if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != PIXELS:
            raise DataError(
                f"{file}: 'data' is not an array (N, {PIXELS}); replace it with the original file"
            )
        if not isinstance(labels, list) or not all(type(n) is int for n in labels):
            raise DataError(
                f"{file}: '{self.label}' is not a list of numbers; check that it is the file of "
                "this data set"
            )
        part = Part(images.reshape(-1, *SHAPE), np.array(labels, np.int64))
        return part.checked(classes, file)


@dataclass(frozen=True)
class CifarBinary:
    """The binary version: records of label bytes, of which the last is the class, and an image."""

    label_bytes: int = 1

    def parse(self, contents: Mapping[str, bytes], classes: int) -> Part:
        """Parse the batches of a part."""
        return join([self._records(content, classes, file) for file, content in contents.items()])

    def _records(self, content: bytes, classes: int, file: str) -> Part:
        size = self.label_bytes + PIXELS
        if not content or len(content) % size:
            raise DataError(
                f"{file}: {len(content):,} bytes are not a whole number of records of {size}; "
                "replace it with the original file"
            )
        records = np.frombuffer(content, np.uint8).reshape(-1, size)
        images = records[:, self.label_bytes :].reshape(-1, *SHAPE).copy()
        labels = records[:, self.label_bytes - 1].astype(np.int64)
        return Part(images, labels).checked(classes, file)
