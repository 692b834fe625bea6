"""Atomic writes, and JSON read within limits.

A file or folder is replaced as a whole, or stays as it was. Everything is written beside its
target, flushed to the disk, and then renamed. Permissions follow the user's umask, whatever program
wrote the temporary file. JSON files may come from anybody: their size, depth and number of values
are limited before they are parsed.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

TEMPORARY = ".tmp-"  # how the names of temporary files begin
LARGEST_JSON = 64 * 2**20  # bytes; the kept units of a large model take some ten millions
MOST_VALUES = 4 * 2**20  # in one JSON text; parsed, a value takes up to 150 bytes
DEEPEST_JSON = 64  # lists and objects within each other
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)  # possessive: nothing is tried twice
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


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
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        _name(error, path)
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


def read_json(
    path: Path, *, largest: int = LARGEST_JSON, deepest: int = DEEPEST_JSON, most: int = MOST_VALUES
) -> Any:
    """Read a JSON file that anybody may have written. The limits bound the memory it can take.

    Args:
        path: The file, in UTF-8.
        largest: The largest size in bytes.
        deepest: The largest number of lists and objects within each other.
        most: The largest number of values.

    Returns:
        The parsed value.

    Raises:
        ValueError: The file exceeds a limit or is not sound JSON (see ``parse_json``). The message
            names the file and the reason.
        OSError: The file cannot be read.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "file.json"
        >>> write_json(path, {"epoch": 3})
        >>> read_json(path)
        {'epoch': 3}
        >>> read_json(path, largest=10)
        Traceback (most recent call last):
        ValueError: /.../file.json has more than 10 bytes
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > largest:
            raise ValueError(f"{path} has more than {largest:,} bytes")
        data = file.read(size)  # no more: a device says 0 and never ends
    try:
        return parse_json(data, deepest=deepest, most=most)
    except ValueError as error:
        raise ValueError(f"{path} is not sound JSON: {str(error)[:200]}") from None


def parse_json(data: bytes, *, deepest: int = DEEPEST_JSON, most: int = MOST_VALUES) -> Any:
    """Parse JSON in UTF-8 whose keys do not repeat and whose numbers are finite.

    Args:
        data: The text.
        deepest: The largest number of lists and objects within each other.
        most: The largest number of values. It is estimated by commas and brackets.

    Returns:
        The parsed value.

    Raises:
        ValueError: The text is not such JSON, or exceeds a limit. Limits are checked first.

    Example:
        >>> parse_json(b'{"a": [1, 2]}')
        {'a': [1, 2]}
        >>> parse_json(b"[[[]]]", deepest=2)
        Traceback (most recent call last):
        ValueError: lists and objects are nested more than 2 deep
    """
    if sum(map(data.count, (b",", b"[", b"{"))) > most:
        raise ValueError(f"it has more than {most:,} values")
    brackets = _STRING.sub(b"", data).translate(None, _NO_BRACKETS)
    steps = (1 if bracket in b"[{" else -1 for bracket in brackets)
    if any(depth > deepest for depth in accumulate(steps)):
        raise ValueError(f"lists and objects are nested more than {deepest} deep")
    value = json.loads(
        data.decode(),  # json.loads itself would accept other encodings
        object_pairs_hook=_unique_keys,
        parse_constant=_finite,
        parse_float=_finite,
    )
    if _SURROGATE.search(data):  # half a character could not be printed
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key stands twice")
    return record


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is not a finite number")
    return number


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
    except BaseException as error:
        shutil.rmtree(new, ignore_errors=True)
        _name(error, folder)
        raise


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files that killed processes left in a folder."""
    for path in folder.glob(f"{TEMPORARY}*"):
        if path.is_file():
            path.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """A new name in the same folder. It keeps the suffix, which some writers check."""
    return path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}-{path.name}")


def _name(error: BaseException, path: Path) -> None:
    """Let an error name what the user asked for, not the temporary file."""
    if not isinstance(error, OSError) or error.errno is None:
        return
    if error.filename is None or TEMPORARY in str(error.filename):
        error.filename, error.filename2 = str(path), None


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
