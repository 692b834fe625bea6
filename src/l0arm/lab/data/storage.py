"""Files on disk: where the cache is, how a file gets into it, and how compressed ones are read."""

import gzip
import os
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from l0arm.lab.data.errors import DataError

__all__ = ["LIMIT", "default_cache", "plain_or_gz", "read_content", "replacing"]

LIMIT = 1 << 29  # 512 MiB: more than any file of the catalogue, less than fills a machine


def default_cache() -> Path:
    """``$XDG_CACHE_HOME/l0arm``, or ``~/.cache/l0arm``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "l0arm"


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Offer a temporary path that becomes ``target`` at once when the block ends well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


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
