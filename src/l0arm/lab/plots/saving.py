"""A figure as a file: the suffix names the format, and the file is whole or not there."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from l0arm.files import write_bytes

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
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, rendered(figure, kind))


def rendered(figure: Figure, kind: str) -> bytes:
    """The bytes of a figure in a format, without date or random names in them."""
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "l0arm"}):
        figure.savefig(file, format=kind, metadata=UNDATED[kind])
    return file.getvalue()
