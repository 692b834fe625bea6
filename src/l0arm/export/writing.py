"""Where an exported file may be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from l0arm.files import replacing


@contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[Path]:
    """A path to write to; the file takes the place of ``path`` if nothing fails meanwhile."""
    if path.exists() and not (force and path.is_file()):
        raise FileExistsError(
            f"{path} exists; choose another name, or let it be replaced: force=True, or --force "
            "on the command line"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        yield temporary
