"""The standard streams of the process: closed ones, narrow encodings, readers that went away."""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from l0arm.lab.errors import OutputLost

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STREAMS = (0, 1, 2)  # file descriptors of input, output and errors


class Descriptor(io.FileIO):
    """A file descriptor that keeps the error of a failed write instead of raising it.

    Everything after a failed write is dropped. The process decides when to look at the error: a
    run must be saved first, and a line for a closed terminal must not become a traceback.
    """

    error: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        view = memoryview(data)
        if self.error is None:
            try:
                while (written := super().write(view)) is None:  # a full pipe that does not block
                    select.select([], [self], [])
                return written
            except OSError as error:
                self.error = error
        return view.nbytes


@contextmanager
def safe_streams() -> Iterator[None]:
    """Replace the standard output and the standard error of the process.

    Writing to them raises no error: see ``check_output``. Characters that the encoding lacks are
    printed as question marks. Closed streams are opened on the null device, because otherwise the
    next file that is opened takes their place, and messages of other packages end up in it.
    """
    _open_closed_streams()
    before = sys.stdout, sys.stderr
    for stream in before:
        if stream is not None:
            stream.flush()
    sys.stdout = _safe(sys.stdout, 1, "replace")
    sys.stderr = _safe(sys.stderr, 2, "backslashreplace")
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


def check_output() -> None:
    """Raise OutputLost if something that was printed could not be written."""
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, Descriptor) and raw.error is not None:
        why = raw.error.strerror or str(raw.error)
        raise OutputLost(f"the standard output cannot be written ({why})")


def _open_closed_streams() -> None:
    for number in STREAMS:
        try:
            os.fstat(number)
        except OSError:  # opening takes the lowest number that is free, which is this one
            os.open(os.devnull, os.O_RDWR)


def _safe(stream: TextIO | None, number: int, errors: str) -> TextIO:
    if stream is not None:
        try:
            number = stream.fileno()
        except (OSError, ValueError):  # not a stream of the process, as in a notebook
            return stream
    descriptor = Descriptor(number, "w", closefd=False)
    encoding = "utf-8" if stream is None else stream.encoding
    lines = number == 2 or descriptor.isatty()
    buffer = io.BufferedWriter(descriptor)
    return io.TextIOWrapper(buffer, encoding=encoding, errors=errors, line_buffering=lines)
