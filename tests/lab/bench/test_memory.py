"""Peak memory, of a network whose need is known."""

import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from torch import Tensor

from l0arm.lab.bench.memory import peak_memory

MEGABYTE = 2**20
needs_linux = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the kernel's own figures are read"
)


def doubling(weights: Tensor, threads: int) -> Callable[[Tensor], object]:
    return lambda x: (weights + x).sum()


@needs_linux
def test_it_counts_weights_and_what_a_call_takes() -> None:
    weights = torch.rand(20 * MEGABYTE // 4)
    grown = peak_memory(partial(doubling, weights), torch.ones(1))
    assert grown is not None
    assert 38 * MEGABYTE < grown < 80 * MEGABYTE  # 20 held, 20 in the call, and torch's own


@needs_linux
def test_no_line_of_ours_unpickles(monkeypatch: pytest.MonkeyPatch) -> None:
    def recv(connection: Connection) -> None:
        raise AssertionError("an object is read from a pipe")

    monkeypatch.setattr(Connection, "recv", recv)
    assert peak_memory(partial(doubling, torch.rand(4)), torch.ones(1)) is not None


def test_what_cannot_be_sent_is_not_measured() -> None:
    assert peak_memory(lambda threads: lambda x: x, torch.ones(1)) is None


def endless(threads: int) -> Callable[[Tensor], object]:
    time.sleep(600)
    return lambda x: x


@needs_linux
def test_a_child_without_an_answer_is_ended() -> None:
    assert peak_memory(endless, torch.ones(1), timeout=0.5) is None
    assert multiprocessing.active_children() == []
