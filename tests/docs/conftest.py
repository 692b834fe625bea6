"""The environment in which the code of a page runs: an empty folder, few digits, one process."""

import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import distributed

from l0arm.costs import timing
from l0arm.lab import data
from l0arm.lab.data import MnistMini, mini
from l0arm.planning.rules.base import RULES


@pytest.fixture
def page_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which a page runs. What the page registers or starts is undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # The time of this thread, which other programs do not prolong, and fewer rounds.
    quick = partial(timing.module_times, patience=timing.Patience(rounds=4))
    monkeypatch.setattr("l0arm.costs.latency_model.wall_clock", lambda device: time.thread_time)
    monkeypatch.setattr("l0arm.costs.latency_model.module_times", quick)
    few = MnistMini(*(part[:200] for part in mini.mnist_mini()))  # training takes a moment
    for module in (data, mini):
        monkeypatch.setattr(module, "mnist_mini", lambda: few)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    address = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in address.items():  # as under torchrun
        monkeypatch.setenv(name, value)
    rules, state = dict(RULES), torch.get_rng_state()
    yield tmp_path
    RULES.clear()
    RULES.update(rules)
    torch.set_rng_state(state)
    if distributed.is_initialized():
        distributed.destroy_process_group()
