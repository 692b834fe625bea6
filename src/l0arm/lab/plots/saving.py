"""A figure as a file: the suffix names the format, and the file is whole or not there."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
UNDATED = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def save(figure: Figure, path: Path) -> None:
    """Write a figure as .png, .svg or .pdf; the same figure gives the same bytes."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ValueError(
            f"cannot draw {path.name}: a figure is written as .png, .svg or .pdf; "
            f"got {path.suffix or 'no suffix'}"
        )
    write_whole(path, rendered(figure, kind))


def rendered(figure: Figure, kind: str) -> bytes:
    """The bytes of a figure in a format, without date or random names in them."""
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "l0arm"}):
        figure.savefig(file, format=kind, metadata=UNDATED[kind])
    return file.getvalue()


def write_whole(path: Path, data: bytes) -> None:
    """Replace the file at once, so that no reader sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp makes files that only their owner may read
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
