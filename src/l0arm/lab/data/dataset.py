"""A data set for image classification, whole and in memory."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l0arm.lab.data.errors import DataError

__all__ = ["Dataset"]


@dataclass(frozen=True)
class Dataset:
    """Images as uint8 ``(N, C, H, W)`` with C = 1 or 3, labels as int64 ``(N,)`` below ``classes``.

    ``source`` says where the images came from and whether their content was verified.
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
        """Hold out training images to tune on; the real test set is not in the result.

        The last ``held_out`` of a permutation drawn with ``seed`` become the test part.

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
