"""A data set for image classification in memory, its parts as readers return them, and errors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["Absent", "DataError", "Dataset", "Part", "Progress", "join", "silent"]

# How long steps report progress: what is done, how much of it, and the total if it is known.
Progress = Callable[[str, int, int | None], None]


def silent(what: str, done: int, total: int | None) -> None:
    """Report nothing."""


class DataError(ValueError):
    """A data set that cannot be found, or a data file that must not be used.

    The message names the file and what to do about it.

    Example:
        >>> from l0arm.lab.data import load_dataset
        >>> load_dataset("imagenet")
        Traceback (most recent call last):
        l0arm.lab.data.dataset.DataError: there is no data set 'imagenet'; choose one of mnist, ...
    """


class Absent(DataError):
    """The files of a data set are not in this place. Another place may have them."""


@dataclass(frozen=True)
class Dataset:
    """A data set in memory.

    Attributes:
        name: The name it was loaded by.
        train_images: uint8 ``(N, C, H, W)`` with C = 1 or 3.
        train_labels: int64 ``(N,)``, from 0 to ``classes - 1``.
        test_images: As ``train_images``, with the same C, H and W.
        test_labels: As ``train_labels``.
        classes: The number of classes.
        source: Where the images came from, and whether their content was verified.

    Example:
        >>> images, labels = torch.zeros(10, 1, 2, 2, dtype=torch.uint8), torch.arange(10)
        >>> Dataset("digits", images, labels, images[:3], labels[:3], 10, "made up").classes
        10
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int
    source: str

    def __post_init__(self) -> None:
        _check_part(f"{self.name}, train", self.train_images, self.train_labels, self.classes)
        _check_part(f"{self.name}, test", self.test_images, self.test_labels, self.classes)
        train, test = tuple(self.train_images.shape[1:]), tuple(self.test_images.shape[1:])
        if train != test:
            raise DataError(
                f"{self.name}: training images are {train}, but test images are {test} "
                "(channels, height, width); bring them to one shape"
            )

    def split(self, held_out: int, seed: int = 0) -> "Dataset":
        """Hold out training images to tune on. The real test set is not in the result.

        Args:
            held_out: How many training images become the test part. They are the last ones of a
                random permutation.
            seed: The seed of the permutation.

        Returns:
            A data set made of the training images alone.

        Raises:
            DataError: ``held_out`` leaves no image on one of the two sides.

        Example:
            >>> images, labels = torch.zeros(10, 1, 2, 2, dtype=torch.uint8), torch.arange(10)
            >>> digits = Dataset("digits", images, labels, images[:3], labels[:3], 10, "made up")
            >>> tuning = digits.split(held_out=4)
            >>> len(tuning.train_labels), len(tuning.test_labels), tuning.source
            (6, 4, 'made up; 4 of its 10 training images held out (seed 0)')
        """
        count = len(self.train_labels)
        if not 0 < held_out < count:
            raise DataError(
                f"{self.name}: held_out must be between 1 and {count - 1}, one less than the "
                f"training images, but is {held_out}"
            )
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        kept, held = order[:-held_out], order[-held_out:]
        return replace(
            self,
            train_images=self.train_images[kept],
            train_labels=self.train_labels[kept],
            test_images=self.train_images[held],
            test_labels=self.train_labels[held],
            source=f"{self.source}; {held_out:,} of its {count:,} training images held out "
            f"(seed {seed})",
        )


def _check_part(what: str, images: Tensor, labels: Tensor, classes: int) -> None:
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] not in (1, 3):
        raise DataError(
            f"{what}: images must be uint8 (N, C, H, W) with C = 1 or 3, but are "
            f"{images.dtype} {tuple(images.shape)}"
        )
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        raise DataError(
            f"{what}: labels must be int64 ({len(images)},), one for each image, but are "
            f"{labels.dtype} {tuple(labels.shape)}"
        )
    if not len(labels):
        raise DataError(f"{what}: there is no image")
    if labels.min() < 0 or labels.max() >= classes:
        raise DataError(
            f"{what}: labels must lie in 0 … {classes - 1}, but reach from "
            f"{int(labels.min())} to {int(labels.max())}"
        )


class Part(NamedTuple):
    """The training or test part as a file format returns it: uint8 ``(N, C, H, W)`` and labels."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    def checked(self, classes: int, where: object) -> "Part":
        """The part itself, if every image has a label and every label is a class."""
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
