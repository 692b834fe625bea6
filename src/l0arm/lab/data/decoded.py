"""Decoded images kept in the cache: decoding 60,000 JPEGs takes longer than many an epoch.

A file is named by what it was decoded from, and carries the digest of its own content.
"""

import contextlib
import hashlib
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from l0arm.files import replacing
from l0arm.lab.data.parts import Part

__all__ = ["decoded_once"]


def decoded_once(key: str, cache: Path, decode: Callable[[], Part]) -> Part:
    """The part under ``key``; decoded now if the cache has none or a damaged one."""
    path = cache / "decoded" / f"{key}.npz"
    part = _read(path)
    if part is None:
        part = decode()
        # A cache that cannot be written (read-only, full) costs time, not the result.
        with contextlib.suppress(OSError):
            _write(path, part)
    return part


def _read(path: Path) -> Part | None:
    try:
        # np.load leaves a file that it opened itself open when the archive is damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as npz:
            part, digest = Part(npz["images"], npz["labels"]), str(npz["sha256"])
    # What np.load raises for a damaged archive depends on where the damage is.
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error):
        return None
    return part if _digest(part) == digest else None


def _write(path: Path, part: Part) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, images=part.images, labels=part.labels, sha256=np.array(_digest(part)))


def _digest(part: Part) -> str:
    digest = hashlib.sha256()
    for array in part:
        digest.update(f"{array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
