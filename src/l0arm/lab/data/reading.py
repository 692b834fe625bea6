"""Files of data sets as bytes: checksums, gzip, and members of tar archives.

Nothing is parsed before its checksum is that of the published file, and nothing is ever unpacked to
disk.
"""

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path

from l0arm.lab.data.dataset import DataError

__all__ = ["LIMIT", "check_digest", "file_digest", "plain_or_gz", "read_content", "read_members"]

LIMIT = 1 << 29  # 512 MiB: more than any file of the catalogue, less than fills a machine


def check_digest(content: bytes | Path, digest: str, where: str | Path) -> None:
    """Compare bytes, or the content of a file, with a digest like ``sha256:9f86d0…``.

    >>> check_digest(b"abc", "md5:900150983cd24fb0d6963f7d28e17f72", "abc.txt")
    >>> check_digest(b"abd", "md5:900150983cd24fb0d6963f7d28e17f72", "abc.txt")
    Traceback (most recent call last):
    l0arm.lab.data.dataset.DataError: abc.txt: its MD5 is 4911e516…, but the published file has ...
    """
    algorithm, expected = digest.split(":")
    if isinstance(content, Path):
        actual = file_digest(content, algorithm)
    else:
        actual = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if actual != expected:
        name = "SHA-256" if algorithm == "sha256" else algorithm.upper()
        raise DataError(
            f"{where}: its {name} is {actual[:8]}…, but the published file has {expected[:8]}…, so "
            "it is damaged, cut short or of another data set; put the original file in its place"
        )


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """The digest of a file of any size, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def read_content(path: Path, limit: int = LIMIT) -> bytes:
    """Read a whole file. A file that begins like gzip is decompressed, whatever its name."""
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
    """The path of a file if it exists, else the path of its compressed form."""
    plain = folder / name
    return plain if plain.is_file() else folder / f"{name}.gz"


def read_members(archive: Path, names: Collection[str], limit: int = LIMIT) -> dict[str, bytes]:
    """The content of the named members of a tar archive. Other members are not read."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if name in names and name not in found:
                    found[name] = _member(tar, member, archive, limit)
                if len(found) == len(names):
                    break
    except DataError:
        raise
    # tarfile parses the headers of sparse members unchecked, hence ValueError and LookupError.
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, LookupError) as error:
        raise DataError(
            f"{archive}: is no readable tar archive ({error}), so it is damaged or cut short; "
            "put the original archive in its place"
        ) from error
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError(
            f"{archive}: has no member {', '.join(missing)}; replace it with the original archive"
        )
    return found


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo, archive: Path, limit: int) -> bytes:
    """The content of a plain file. Links and devices are refused."""
    file = tar.extractfile(member) if member.isreg() else None
    if file is None or member.size > limit:
        raise DataError(
            f"{archive}: member {member.name} is not a plain file of at most {limit:,} bytes; "
            "replace it with the original archive"
        )
    return file.read()
