"""Encoded images (PNG, JPEG, …): one image as an array, and a folder of them as a data set.

The folder has a sub-folder for each class: ``PATH/train/<class>/*.png`` and
``PATH/test/<class>/*.png``, or ``PATH/<class>/*.png``, of which a fifth of each class becomes the
test part. Decoding needs Pillow.
"""

import importlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from l0arm.lab.data.dataset import DataError, Dataset, Progress

__all__ = ["as_colour", "decode_image", "load_folder", "optional"]

GREY = frozenset({"1", "L", "LA"})
COLOUR = frozenset({"P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
TEST_SHARE, SEED = 0.2, 0

Labelled = list[tuple[Path, int]]


def decode_image(encoded: bytes | Path, where: object) -> npt.NDArray[np.uint8]:
    """One image as uint8 ``(C, H, W)``: C = 1 for greyscale, 3 for any colour."""
    pillow = optional("PIL.Image", "Pillow")
    try:
        with pillow.open(io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded) as image:
            mode = image.mode
            known = mode in GREY | COLOUR
            pixels = np.array(image.convert("L" if mode in GREY else "RGB") if known else 0)
    # Pillow has a reader for each of some forty formats, and what they raise for damaged bytes is
    # not documented: NotImplementedError for DDS, struct.error and SyntaxError for others.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"{where}: is no readable image ({reason}); replace or remove it"
        ) from error
    if not known:
        raise DataError(
            f"{where}: pixels of mode {mode!r} are not 8 bits deep; convert the image to 8 bit "
            "greyscale or RGB"
        )
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def as_colour(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A greyscale image in three equal channels; a colour image unchanged."""
    return np.broadcast_to(image, (3, *image.shape[1:]))


def optional(module: str, package: str) -> Any:
    """Import a module of the extra ``data``, or raise an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f"{package} is needed to read encoded images: pip install 'l0arm[data]'"
        ) from error


def load_folder(name: str, root: Path, progress: Progress) -> Dataset:
    """Read every image below ``root``. One colour image makes all of them colour images."""
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
    """The images of every class, sorted by name."""
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
    files: Labelled = []
    for label, name in enumerate(classes):
        if (folder / name).is_dir():  # test/ may lack a class
            inside = sorted((folder / name).iterdir())
            files += [(path, label) for path in inside if path.suffix.lower() in SUFFIXES]
    if not files:
        raise DataError(
            f"{folder}: has no images; expected <class>/<image> with one of the suffixes "
            f"{', '.join(sorted(SUFFIXES))}"
        )
    return files


def _split(files: Labelled, classes: int) -> list[Labelled]:
    """Hold out a fifth of each class, at random with a fixed seed."""
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
