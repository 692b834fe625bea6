import threading

import pytest


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only threads that start from now on count as other threads.

    A test process of pytest-xdist has some that never use the model. With another thread a step
    does more: hooks stay on, and random numbers are guarded.
    """
    count, others = threading.active_count, threading.active_count() - 1
    monkeypatch.setattr(threading, "active_count", lambda: count() - others)
