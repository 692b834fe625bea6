"""A file that is written beside its place, and moves there whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[Path]:
    """A path to write to; the file takes the place of ``path`` if nothing fails meanwhile."""
    if path.exists() and not (force and path.is_file()):
        raise FileExistsError(
            f"{path} exists; choose another name, or let it be replaced: force=True, or --force "
            "on the command line"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        temporary = Path(folder) / path.name
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
