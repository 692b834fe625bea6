"""Atomic writes: a file or folder is replaced as a whole, or stays as it was.

Everything is written beside its target, flushed to the disk, and then renamed. Permissions follow
the user's umask, whatever program wrote the temporary file.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TEMPORARY = ".tmp-"  # how the names of temporary files begin


def default_cache() -> Path:
    """The folder for files that can be made again.

    Returns:
        ``$XDG_CACHE_HOME/l0arm``, or ``~/.cache/l0arm`` if the variable is not set.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "l0arm"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file atomically.

    Args:
        path: The file to create or to replace. Its folder must exist.

    Yields:
        A temporary path in the same folder. It takes the place of ``path`` when the block ends
        without an exception, and is deleted otherwise.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "notes.txt"
        >>> with replacing(target) as temporary:
        ...     _ = temporary.write_text("whole")
        >>> target.read_text()
        'whole'
    """
    temporary = _beside(path)
    try:
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode  # as the umask has it
        yield temporary
        temporary.chmod(mode)
        _flush(temporary)
        temporary.replace(path)
        _flush_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write text atomically, in UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON atomically. NaN and infinities are refused (ValueError)."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Write a folder of files atomically.

    Args:
        folder: The folder to create or to replace.

    Yields:
        A temporary folder beside it. It takes the place of ``folder`` when the block ends without
        an exception; otherwise it is deleted, and a folder that was there before stays.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = _beside(folder)
    try:
        new.mkdir()
        mode = new.stat().st_mode & 0o666  # as the umask has it
        yield new
        for path in new.iterdir():
            path.chmod(mode)
            _flush(path)
        _flush_folder(new)
        _exchange(new, folder)
        _flush_folder(folder.parent)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files that killed processes left in a folder."""
    for path in folder.glob(f"{TEMPORARY}*"):
        if path.is_file():
            path.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """A new name in the same folder. It keeps the suffix, which some writers check."""
    return path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}-{path.name}")


def _exchange(new: Path, folder: Path) -> None:
    """Rename ``new`` to ``folder``. An old folder is moved aside first, and back on failure."""
    if not folder.exists():
        new.rename(folder)
        return
    old = _beside(folder)
    folder.rename(old)
    try:
        new.rename(folder)
    except BaseException:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _flush(path: Path) -> None:
    with path.open("rb+") as file:  # Windows flushes only files that are open for writing
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Make a rename durable. Windows cannot open folders, and needs no flush."""
    if os.name != "nt":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
