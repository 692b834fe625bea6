"""A folder of images as a data set: one sub-folder for each class; needs Pillow.

``PATH/train/<class>/*.png`` and ``PATH/test/<class>/*.png``, or ``PATH/<class>/*.png``, of which a
fifth of each class becomes the test part.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from l0arm.lab.data.dataset import Dataset
from l0arm.lab.data.errors import DataError
from l0arm.lab.data.images import as_colour, decode_image
from l0arm.lab.data.progress import Progress

__all__ = ["load_folder"]

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
TEST_SHARE, SEED = 0.2, 0

Labelled = list[tuple[Path, int]]


def load_folder(name: str, root: Path, progress: Progress) -> Dataset:
    """Read every image below ``root``; greyscale stays so only if all of them are."""
    if not root.is_dir():
        raise DataError(f"{root}: there is no such folder of images")
    if (root / "train").is_dir() and _classes(root / "train"):
        classes = _classes(root / "train")
        parts = [_files(root / "train", classes), _files(root / "test", classes)]
        how = "its own train/ and test/"
    else:
        classes = _classes(root)
        parts = _split(_files(root, classes), len(classes))
        how = f"a random {TEST_SHARE:.0%} of each class as test part (seed {SEED})"
    images = _images([path for part in parts for path, _ in part], root, progress)
    train, test = torch.split(images, [len(part) for part in parts])
    labels = [torch.tensor([label for _, label in part], dtype=torch.int64) for part in parts]
    source = f"{root} (a folder of images, content not verified; {how})"
    return Dataset(name, train, labels[0], test, labels[1], len(classes), source)


def _classes(folder: Path) -> list[str]:
    visible = (path for path in folder.iterdir() if not path.name.startswith("."))
    return sorted(path.name for path in visible if path.is_dir())


def _files(folder: Path, classes: Sequence[str]) -> Labelled:
    """The images of every class, in the order of their names."""
    if not folder.is_dir():
        raise DataError(
            f"{folder}: there is no such folder, though train/ is beside it; add it with the same "
            "classes, or move the classes one level up to have them split"
        )
    unknown = sorted(set(_classes(folder)) - set(classes))
    if unknown:
        raise DataError(
            f"{folder / unknown[0]}: is a class that train/ does not have; add it there or remove "
            "it here"
        )
    files = [(path, n) for n, c in enumerate(classes) for path in _class_files(folder / c)]
    if not files:
        raise DataError(
            f"{folder}: has no images; expected <class>/<image> with one of the suffixes "
            f"{', '.join(sorted(SUFFIXES))}"
        )
    return files


def _class_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def _split(files: Labelled, classes: int) -> list[Labelled]:
    """Set a fifth of each class aside, at random but always the same."""
    generator = torch.Generator().manual_seed(SEED)
    train: Labelled = []
    test: Labelled = []
    for label in range(classes):
        own = [file for file in files if file[1] == label]
        order = torch.randperm(len(own), generator=generator).tolist()
        held = set(order[: round(TEST_SHARE * len(own))])
        for index, file in enumerate(own):
            (test if index in held else train).append(file)
    if not test:
        raise DataError(
            f"{files[0][0].parents[1]}: too few images to set {TEST_SHARE:.0%} of each class "
            "aside; add images, or sort them into train/<class>/ and test/<class>/"
        )
    return [train, test]


def _images(paths: Sequence[Path], root: Path, progress: Progress) -> Tensor:
    images = []
    for path in paths:
        images.append(decode_image(path, path))
        if images[-1].shape[1:] != images[0].shape[1:]:
            raise DataError(
                f"{path}: its height and width are {images[-1].shape[1:]}, but {paths[0]} has "
                f"{images[0].shape[1:]}; bring all images to one size"
            )
        progress(f"reading {root}", len(images), len(paths))
    if any(len(image) == 3 for image in images):
        images = [as_colour(image) for image in images]
    return torch.from_numpy(np.stack(images))
