"""Reading files of data sets, compressed or not."""

import gzip
import zlib
from pathlib import Path

from l0arm.lab.data.errors import DataError

LIMIT = 1 << 29  # 512 MiB: more than any file of the catalogue, less than fills a machine


def read_content(path: Path, limit: int = LIMIT) -> bytes:
    """Read a whole file; decompress it if it begins as gzip does, whatever its name."""
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if compressed else path.open("rb") as file:
            content = file.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: cannot be read to its end ({error}), so it is damaged or cut short; put "
            "the original file in its place"
        ) from error
    if len(content) > limit:
        raise DataError(f"{path}: holds more than {limit:,} bytes, so it is not the original file")
    return content


def plain_or_gz(folder: Path, name: str) -> Path:
    """The file itself if it is there, else the path that its compressed form would have."""
    plain = folder / name
    return plain if plain.is_file() else folder / f"{name}.gz"
