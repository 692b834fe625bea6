"""Executors: chosen by name, and processes of this machine."""

import os
import socket
import sys
from pathlib import Path

import pytest

from l0arm.lab.errors import UserError
from l0arm.lab.runs.campaign import executor_named
from l0arm.lab.runs.executors import End, LocalProcesses, Work
from l0arm.lab.runs.ray_tasks import _connect


def test_a_process_has_a_group_of_its_own_and_ends_with_its_code(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("before\n")
    handle = LocalProcesses().start(Work(("train", "no-such-recipe"), log))
    assert handle.poll() is None
    assert os.getpgid(handle.process.pid) == handle.process.pid != os.getpgrp()
    handle.wait()
    assert handle.poll() == End(2)
    assert log.read_text().startswith("before\nerror: no recipe 'no-such-recipe'")


def test_as_many_at_a_time_as_there_are_cores() -> None:
    assert LocalProcesses().slots() == os.cpu_count()


def test_the_local_one() -> None:
    with executor_named("local") as executor:
        assert executor == LocalProcesses()


@pytest.mark.parametrize(
    ("name", "address", "message"),
    [
        ("rai", None, "no executor 'rai'; did you mean 'ray'?"),
        ("slurm", None, "no executor 'slurm'; there are local, ray"),
        ("local", "10.0.0.1:6379", "--ray-address is of use with --executor ray only"),
    ],
)
def test_an_executor_that_cannot_be_used_is_refused(
    name: str, address: str | None, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        executor_named(name, address)
    assert message in str(caught.value)


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://localhost:{}"])
def test_an_address_where_nothing_listens_is_refused_at_once(address: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(UserError) as caught:
        _connect(None, address.format(port))  # Ray is not even asked
    assert f"no Ray cluster at '{address.format(port)}'" in str(caught.value)
    assert "ray start --head" in str(caught.value)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError) as caught, executor_named("ray"):
        pass
    assert "pip install 'l0arm[ray]'" in str(caught.value)
