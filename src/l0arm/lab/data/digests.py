"""Nothing is read before its checksum is that of the published file."""

import hashlib
from pathlib import Path

from l0arm.lab.data.errors import DataError

__all__ = ["check_digest", "file_digest"]


def check_digest(content: bytes | Path, digest: str, where: str | Path) -> None:
    """Compare content, or a file's, with a digest like ``sha256:9f86d0…``.

    >>> check_digest(b"abc", "md5:900150983cd24fb0d6963f7d28e17f72", "abc.txt")
    >>> check_digest(b"abd", "md5:900150983cd24fb0d6963f7d28e17f72", "abc.txt")
    Traceback (most recent call last):
    l0arm.lab.data.errors.DataError: abc.txt: its MD5 is 4911e516…, but the published file has ...
    """
    algorithm, expected = digest.split(":")
    if isinstance(content, Path):
        came = file_digest(content, algorithm)
    else:
        came = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if came != expected:
        name = "SHA-256" if algorithm == "sha256" else algorithm.upper()
        raise DataError(
            f"{where}: its {name} is {came[:8]}…, but the published file has {expected[:8]}…, so "
            "it is damaged, cut short or of another data set; put the original file in its place"
        )


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """The digest of a file of any size, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
