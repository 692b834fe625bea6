"""The command line (extra ``cli``). Here: what is needed before its packages are imported."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


def exit_for_missing(error: ModuleNotFoundError) -> NoReturn:
    """End the program with the way to install the package that is missing.

    A module of our own that is missing is a bug: the error is raised again.
    """
    if (error.name or "").startswith("l0arm"):
        raise error
    sys.exit(f"error: the command line needs '{error.name}'; pip install 'l0arm[cli]'")


@contextmanager
def ending_on_interrupt() -> Iterator[None]:
    """End the process on Ctrl-C, with one line. For imports, where there is nothing to save.

    A KeyboardInterrupt is not raised: packages that are being imported turn it into other errors.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, b"interrupted: nothing was done\n")
    finally:
        os._exit(130)
