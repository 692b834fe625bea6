"""One thread at a time uses a gated model.

For the length of a call the tensors of its modules are replaced (hook.py), so another thread
would compute with them. It waits for its turn instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

PATIENCE = 60.0  # seconds without a call of any module, or a turn, after which a thread gives up


class Identity:
    """One thread. The system gives the identifier of a thread that ended to another one."""

    def __init__(self) -> None:
        thread = threading.current_thread()
        self.name = thread.name
        # Python did not start the thread: autograd has such threads for devices.
        self.foreign = isinstance(thread, threading._DummyThread)

    def __str__(self) -> str:
        return f"'{self.name}'"


class _This(threading.local):
    def __init__(self) -> None:
        self.thread = Identity()  # runs once in every thread


THIS = _This()  # ``THIS.thread`` is the calling thread


class Turn:
    """Whose turn it is to use a model. The thread that has it may take it again.

    The thread that has the turn is recorded, so that giving it back can be repeated after an
    interrupt at any point.

    >>> turn = Turn()
    >>> turn.take(lambda: 0)
    >>> turn.mine
    True
    >>> turn.give_back()
    >>> turn.give_back()
    >>> turn.mine
    False
    """

    def __init__(self) -> None:
        self.owner: Identity | None = None  # the thread that has the turn
        self.taken = 0  # how often a thread took it
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[type[Turn], tuple[()]]:
        return Turn, ()  # in a copy it is nobody's turn

    @property
    def mine(self) -> bool:
        """Whether the calling thread has the turn."""
        return self.owner is THIS.thread

    def take(self, progress: Callable[[], int]) -> None:
        """Wait until no other thread has the turn, and take it.

        Args:
            progress: Counts the calls of modules by the thread that has the turn.

        Raises:
            RuntimeError: That thread has the turn, but made no call for a long time. It may be
                waiting for the calling thread.
        """
        seen = progress(), self.taken
        while not self._lock.acquire(timeout=PATIENCE):
            seen, before = (progress(), self.taken), seen
            if seen == before:
                raise RuntimeError(
                    f"this thread has waited {PATIENCE:.0f} seconds for thread "
                    f"{self.owner}, which is inside a call of this gated model and does not "
                    "go on. One thread at a time can use a gated model: do not call it from "
                    "threads that a closure, a forward or a `with gated.drawn(...)` waits for. "
                    "gated.compact() gives a plain network for any number of threads"
                )
        self.owner = THIS.thread
        self.taken += 1

    def give_back(self) -> None:
        """Let other threads go on. Does nothing if the calling thread does not have the turn."""
        if self.mine:
            self.owner = None
        while self._lock._is_owned():  # type: ignore[attr-defined]
            self._lock.release()
