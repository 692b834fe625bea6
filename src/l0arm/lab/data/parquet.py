"""CIFAR as Parquet files with encoded images, the layout of the Hugging Face hub; needs pyarrow.

Columns: ``img``, a struct of ``bytes`` and ``path``, and the label's.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from l0arm.lab.data.cifar import SHAPE
from l0arm.lab.data.errors import DataError
from l0arm.lab.data.images import as_colour, decode_image, optional
from l0arm.lab.data.parts import Part
from l0arm.lab.data.progress import Progress

__all__ = ["parse_parquet"]


def parse_parquet(path: Path, classes: int, label: str, progress: Progress) -> Part:
    """Decode every image of a file."""
    arrow = optional("pyarrow", "pyarrow")
    try:
        with optional("pyarrow.parquet", "pyarrow").ParquetFile(path) as file:
            _check_columns(file, label, path)
            rows = file.metadata.num_rows
            images = np.empty((rows, *SHAPE), np.uint8)
            labels = np.empty(rows, np.int64)
            for row, encoded, target in _rows(file, label):
                images[row] = _image(encoded, f"{path}, row {row}")
                labels[row] = target
                if row % 1000 == 999 or row == rows - 1:
                    progress(f"decoding {path.name}", row + 1, rows)
    except (arrow.ArrowException, OSError, TypeError) as error:
        raise DataError(
            f"{path}: is no readable Parquet file ({error}), so it is damaged or cut short; "
            "get it again"
        ) from error
    return Part(images, labels).checked(classes, path)


def _check_columns(file: Any, label: str, path: Path) -> None:
    names = file.schema_arrow.names
    if not {"img", label} <= set(names):
        raise DataError(
            f"{path}: has the columns {', '.join(names)}, but 'img' and '{label}' are needed; "
            "check that it is the file of this data set"
        )


def _rows(file: Any, label: str) -> Iterator[tuple[int, Any, int]]:
    row = 0
    for batch in file.iter_batches(batch_size=1000, columns=["img", label]):
        for encoded, target in zip(batch["img"], batch[label].to_pylist(), strict=True):
            yield row, encoded.as_py(), target
            row += 1


def _image(encoded: Any, where: str) -> Any:
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
