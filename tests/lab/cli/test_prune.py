"""``l0arm prune``: a trained network becomes small, or one line says what is wrong."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import l0arm

Cli = Callable[[str], Any]

SOURCE = """
from torch import nn

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 24), nn.ReLU(), nn.Linear(24, 10))

def wide():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 25), nn.ReLU(), nn.Linear(25, 10))

def colour():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(2704, 10))
"""
SHORT = "--data mnist-mini --epochs 1 --quiet"


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 24), nn.ReLU(), nn.Linear(24, 10))


@pytest.fixture(autouse=True)
def mine(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "mynets.py").write_text(SOURCE)
    torch.manual_seed(0)
    state = net().state_dict()
    save_file(state, tmp_path / "net.safetensors")
    torch.save(state, tmp_path / "net.pt")
    (tmp_path / "bad.pt").write_bytes(b"no pickle")
    yield
    sys.modules.pop("mynets", None)


@pytest.mark.parametrize("weights", ["net.safetensors", "net.pt"])
def test_the_small_network_is_written_and_fits_the_budget(
    cli: Cli, tmp_path: Path, weights: str
) -> None:
    words = f"--weights {weights} --budget params=50% --budget flops=60% --out small"
    ended = cli(f"prune mynets:net {words} {SHORT} --json")
    assert ended.code == 0, ended.err
    facts = json.loads(ended.out)
    small = l0arm.load(tmp_path / "small", net)
    count = sum(p.numel() for p in small.parameters())
    assert count == facts["small"]["parameters"] <= 0.5 * facts["dense"]["parameters"]
    assert 0 <= facts["small"]["score"] <= 100


def test_it_goes_on_from_checkpoints_and_replaces_with_force(cli: Cli, tmp_path: Path) -> None:
    words = "prune mynets:net --weights net.pt --budget flops=50% --out small --checkpoint ckpt"
    assert cli(f"{words} {SHORT}").code == 0
    first = l0arm.load(tmp_path / "small", net).state_dict()
    again = cli(f"{words} {SHORT}")
    assert (again.code, "exists" in again.err) == (2, True)
    assert cli(f"{words} {SHORT} --force").code == 0
    second = l0arm.load(tmp_path / "small", net).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("mynets:wide --weights net.pt --budget flops=50%", "does not fit the network"),
        ("mynets:net --weights bad.pt --budget flops=50%", "not a state dict of torch.save"),
        ("mynets:net --weights none.pt --budget flops=50%", "No such file"),
        ("mynets:net --weights net.pt --budget flops", "write flops=25%"),
        ("mynets:net --weights net.pt --budget flops=many", "expected a share or a number"),
        ("mynets:net --weights net.pt --budget speed=50%", "speed"),
        ("mynets:net --weights net.pt --budget flops=5% --budget flops=6%", "already"),
        ("mynets:nothing --weights net.pt --budget flops=50%", "has no 'nothing'"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(
    cli: Cli, tmp_path: Path, words: str, message: str
) -> None:
    ended = cli(f"prune {words} --out small {SHORT}")
    assert ended.code == 2, ended.err
    assert message in ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "small").exists()
