"""Fixtures of the estimator tests."""

from collections.abc import Callable

import pytest
import torch


@pytest.fixture
def pretend_processes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """``pretend_processes(n)`` makes torch report a process group of n processes."""

    def pretend(processes: int) -> None:
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: processes)

    return pretend
