"""Executors by name, and what is told when one cannot be had."""

import socket
import sys

import pytest

from l0arm.lab.runs.errors import UserError
from l0arm.lab.runs.executors import LocalProcesses, executor_named
from l0arm.lab.runs.executors.ray_tasks import _connect


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
def test_what_cannot_be_had_is_told(name: str, address: str | None, message: str) -> None:
    with pytest.raises(UserError) as caught:
        executor_named(name, address)
    assert message in str(caught.value)


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://localhost:{}"])
def test_an_address_where_nothing_listens_is_told_at_once(address: str) -> None:
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
