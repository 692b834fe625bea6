"""MNIST-mini: 10,000 handwritten digits inside the package, so that examples need no download.

They are MNIST's t10k images. Each class is split 80/20 into train and test. The licence is in
``LICENSE.md`` beside this file, and ``scripts/make_mnist_mini.py`` makes the archive.
"""

import hashlib
import io
import zipfile
import zlib
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["MnistMini", "mnist_mini"]

SHA256 = "65967cb3415de26373c0c12dccfdbe452500b9b365a68ff5e1270f5015e952cd"


class MnistMini(NamedTuple):
    """MNIST-mini in memory.

    Attributes:
        train_images: uint8 ``(8000, 28, 28)``.
        train_labels: int64 ``(8000,)``.
        test_images: uint8 ``(2000, 28, 28)``.
        test_labels: int64 ``(2000,)``.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def mnist_mini() -> MnistMini:
    """Load the 8,000 training and 2,000 test digits that come with the package.

    Returns:
        The digits. Every call returns a new copy.

    Raises:
        ValueError: The file inside the package is damaged.

    Example:
        >>> digits = mnist_mini()
        >>> digits.train_images.shape, digits.test_images.shape
        (torch.Size([8000, 28, 28]), torch.Size([2000, 28, 28]))
        >>> x = digits.train_images.float() / 255
        >>> float(x.min()), float(x.max())
        (0.0, 1.0)
    """
    arrays = _read(_archive())
    return MnistMini(
        train_images=torch.from_numpy(arrays["train_images"]),
        train_labels=torch.from_numpy(arrays["train_labels"]).long(),
        test_images=torch.from_numpy(arrays["test_images"]),
        test_labels=torch.from_numpy(arrays["test_labels"]).long(),
    )


def content_sha256(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256 of the arrays' names, types, shapes and values, independent of compression."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _archive() -> Traversable:
    return resources.files(__name__) / "mnist_mini.npz"


def _read(archive: Traversable) -> dict[str, npt.NDArray[Any]]:
    try:
        with np.load(io.BytesIO(archive.read_bytes()), allow_pickle=False) as npz:
            arrays = dict(npz)
        found = f"content {content_sha256(arrays)}"
    # What np.load raises for a damaged archive depends on where the damage is.
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        arrays, found = {}, f"an unreadable file ({error})"
    if found != f"content {SHA256}":
        raise ValueError(
            f"{archive.name}: expected content {SHA256} (SHA-256), but {found} came; "
            "reinstall l0arm to restore the file"
        )
    return arrays
