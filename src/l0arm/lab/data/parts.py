"""The training or the test part of a data set, as every reader returns it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from l0arm.lab.data.errors import DataError

__all__ = ["Found", "Part", "join"]


class Part(NamedTuple):
    """Images as uint8 ``(N, C, H, W)`` and their labels."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    def checked(self, classes: int, where: object) -> "Part":
        """Itself, if every image has a label and every label is a class; ``where`` names it."""
        if len(self.images) != len(self.labels):
            raise DataError(
                f"{where}: {len(self.images):,} images, but {len(self.labels):,} labels; replace "
                "the file with the original"
            )
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < classes:
            raise DataError(
                f"{where}: labels reach from {self.labels.min()} to {self.labels.max()}, but must "
                f"lie in 0 … {classes - 1}; check that it is the file of this data set"
            )
        return self


def join(parts: Sequence[Part]) -> Part:
    """Several files one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Part(
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )


class Found(NamedTuple):
    """The two parts of a data set, and a line on where they are from and how they were checked."""

    train: Part
    test: Part
    source: str
