"""A network that a former version saved loads, and computes what it computed then."""

import json
from pathlib import Path

import torch
from torch import nn
from torch.testing import assert_close

import l0arm
from l0arm.compaction import inspect_saved

FORMER = Path(__file__).parents[2] / "former"


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(72, 12),
        nn.ReLU(),
        nn.Linear(12, 4),
    )


def test_it_computes_the_same() -> None:
    former = json.loads((FORMER / "saved-output.json").read_text())
    small = l0arm.load(FORMER / "saved", network)
    x = torch.linspace(-1, 1, 3 * 64).view(3, 1, 8, 8)
    with torch.no_grad():
        assert_close(small(x), torch.tensor(former["output"]), rtol=0, atol=1e-6)
    kept = inspect_saved(FORMER / "saved").kept
    assert "-".join(str(len(units)) for units in kept) == former["architecture"]


def test_it_has_its_certificate() -> None:
    found = l0arm.certificate(l0arm.load(FORMER / "saved", network))
    assert found.as_record() == inspect_saved(FORMER / "saved").certificate
    assert found.passed
