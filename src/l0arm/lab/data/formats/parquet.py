"""CIFAR as Parquet files with encoded images, as on the Hugging Face hub; needs pyarrow.

The columns are ``img``, a struct of ``bytes`` and ``path``, and the labels. Decoded images are kept
in the cache, because decoding 60,000 images takes longer than many an epoch.
"""

import contextlib
import hashlib
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l0arm.files import replacing
from l0arm.lab.data.dataset import DataError, Part, Progress, join
from l0arm.lab.data.formats.cifar import SHAPE
from l0arm.lab.data.formats.images import as_colour, decode_image, optional

__all__ = ["Parquet", "decoded_once"]

BATCH = 1000  # rows that are decoded between two progress reports


@dataclass(frozen=True)
class Parquet:
    """Parquet files with encoded images of CIFAR's size."""

    label: str  # the column of the labels

    def read(self, path: Path, classes: int, progress: Progress) -> Part:
        """Decode every image of a file."""
        arrow = optional("pyarrow", "pyarrow")
        try:
            with optional("pyarrow.parquet", "pyarrow").ParquetFile(path) as file:
                self._check_columns(file.schema_arrow.names, path)
                announced = file.metadata.num_rows
                parts, rows = [], 0
                for part in self._batches(file, classes, path):
                    parts.append(part)
                    rows += len(part.labels)
                    progress(f"decoding {path.name}", rows, announced)
        except DataError:
            raise
        # Beside its own errors, pyarrow raises what Python does with broken text and numbers.
        except (arrow.ArrowException, OSError, TypeError, ValueError, LookupError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(
                f"{path}: is no readable Parquet file ({reason}), so it is damaged or cut short; "
                "get it again"
            ) from error
        if rows != announced:
            raise DataError(
                f"{path}: announces {announced:,} rows, but holds {rows:,}, so it is damaged; get "
                "it again"
            )
        return join(parts) if parts else Part(np.empty((0, *SHAPE), np.uint8), np.empty(0, int))

    def _check_columns(self, names: list[str], path: Path) -> None:
        needed = ("img", self.label)
        if not set(needed) <= set(names):
            raise DataError(
                f"{path}: has the columns {', '.join(names)}, but 'img' and '{self.label}' are "
                "needed; check that it is the file of this data set"
            )
        for name in needed:
            if names.count(name) > 1:
                raise DataError(
                    f"{path}: has {names.count(name)} columns '{name}', so it is not clear which "
                    "one counts; remove the others, or get the original file"
                )

    def _batches(self, file: Any, classes: int, path: Path) -> Iterator[Part]:
        row = 0
        for batch in file.iter_batches(batch_size=BATCH, columns=["img", self.label]):
            images = np.empty((len(batch), *SHAPE), np.uint8)
            labels = np.empty(len(batch), np.int64)
            values = zip(batch["img"], batch[self.label].to_pylist(), strict=True)
            for n, (encoded, label) in enumerate(values):
                where = f"{path}, row {row + n}"
                images[n] = _image(encoded.as_py(), where)
                labels[n] = _class(label, classes, where)
            row += len(batch)
            yield Part(images, labels)


def _image(encoded: Any, where: str) -> npt.NDArray[np.uint8]:
    content = encoded.get("bytes") if isinstance(encoded, dict) else encoded
    if not isinstance(content, bytes):
        raise DataError(f"{where}: 'img' holds no encoded image; get the file again")
    image = as_colour(decode_image(content, where))
    if image.shape != SHAPE:
        raise DataError(
            f"{where}: an image of {image.shape} (channels, height, width), but {SHAPE} is "
            "expected; check that it is the file of this data set"
        )
    return image


def _class(label: Any, classes: int, where: str) -> int:
    """A label as an index of a class. Nothing is rounded, and text is not parsed."""
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if not isinstance(label, int) or not 0 <= label < classes:
        raise DataError(
            f"{where}: its label is {label!r}, but must be a whole number in 0 … {classes - 1}; "
            "check that it is the file of this data set"
        )
    return label


def decoded_once(key: str, cache: Path, decode: Callable[[], Part]) -> Part:
    """The part that the cache has under ``key``. If it has none or a damaged one, decode it now.

    The key names what the part is decoded from. The file carries the digest of its own content.
    """
    path = cache / "decoded" / f"{key}.npz"
    part = _read_cached(path)
    if part is None:
        part = decode()
        # A cache that cannot be written (read-only, full) costs time, not the result.
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary, temporary.open("wb") as file:
                digest = np.array(_digest(part))
                np.savez(file, images=part.images, labels=part.labels, sha256=digest)
    return part


def _read_cached(path: Path) -> Part | None:
    try:
        # np.load leaves a file that it opened itself open when the archive is damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as npz:
            part, digest = Part(npz["images"], npz["labels"]), str(npz["sha256"])
    # What np.load raises for a damaged archive depends on where the damage is.
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error):
        return None
    return part if _digest(part) == digest else None


def _digest(part: Part) -> str:
    digest = hashlib.sha256()
    for array in part:
        digest.update(f"{array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
