"""Requests to stop: by Ctrl-C, by SIGTERM, by a terminal that closes, or by lost output."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


@dataclass
class Stop:
    """A request to a run: finish the step, save, and end."""

    requested: bool = False
    failure: str = ""  # why the run cannot go on; empty if the user stopped it

    def fail(self, why: str) -> None:
        """Stop a run that cannot go on, for this reason, unless the user has stopped it already."""
        if not self.requested:
            self.requested, self.failure = True, why


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Graceful shutdown on Ctrl-C, SIGTERM and SIGHUP.

    A signal sets ``requested``, so that the loop finishes the current step, saves and exits. Only
    a second Ctrl-C raises KeyboardInterrupt at once. SIGTERM and SIGHUP are often sent twice, by a
    shell and by the system, and never end a run that is being saved.
    """
    stop, ctrl_c = Stop(), 0

    def request(number: int, frame: FrameType | None) -> None:
        nonlocal ctrl_c
        ctrl_c += number == signal.SIGINT
        if ctrl_c > 1:
            raise KeyboardInterrupt
        # A terminal that closes also loses the output, sometimes a moment before the signal.
        stop.requested, stop.failure = True, ""

    with _handling({signal.SIGINT: request, **dict.fromkeys(_terminations(), request)}):
        yield stop


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does."""
    with _handling(dict.fromkeys(_terminations(), signal.default_int_handler)):
        yield


def _terminations() -> list[signal.Signals]:
    """SIGTERM and SIGHUP. A SIGHUP that is ignored stays so: the user started with nohup."""
    found = [signal.SIGTERM]
    if "SIGHUP" in signal.Signals.__members__:  # Windows has none
        hangup = signal.Signals["SIGHUP"]
        found += [] if signal.getsignal(hangup) == signal.SIG_IGN else [hangup]
    return found


@contextmanager
def _handling(handlers: dict[signal.Signals, Handler]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
