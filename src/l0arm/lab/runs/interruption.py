"""Ctrl-C and SIGTERM as a wish: the step under way is finished first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Stop:
    """Whether the user asked for an end."""

    requested: bool = False


@contextmanager
def stoppable() -> Iterator[Stop]:
    """The first signal sets ``requested``; a second one ends the process at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may handle signals
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.requested:
            raise KeyboardInterrupt
        stop.requested = True

    before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ends_as_interrupts() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does: what is open gets closed."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    ends = (signal.SIGTERM, signal.SIGHUP)
    before = {s: signal.signal(s, signal.default_int_handler) for s in ends}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
