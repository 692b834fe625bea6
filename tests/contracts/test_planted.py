"""A planted problem: 3 of 12 inputs decide the label. Every method that chooses must find them.

With no strength nothing of the three is pruned away: the control.
"""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from l0arm import Gated, sparsify
from l0arm.methods import METHODS, Method
from l0arm.models import MLP

INPUTS, INFORMATIVE = 12, [0, 1, 2]
PER_STAGE = 400  # steps, shared out by the stages' shares
SPECIAL: dict[str, dict[str, Any]] = {
    "bc-ghs": {"lam": 1 / 500, "tolerance": 0.5},
    "bc-gnj": {"lam": 1 / 500, "tolerance": 0.5},
    "group-lasso": {"lam": 0.3},
    "l0": {"lam": 0.02, "estimator": "arms", "samples": 4},
    "l0-ar": {"lam": 0.04},
    "l0-best": {"lam": 0.02, "settle": 0.25},  # 300 steps to learn in
    "l1-filter": {"keep": 0.25},
    "magnitude": {"keep": 0.25},
    "random": {"keep": 0.25},
    "sbp": {"lam": 1 / 100},
    "sparse-vd": {"lam": 1 / 100},
    "vibnet": {"lam": 1 / 100},
}


def options(name: str) -> dict[str, Any]:
    """Methods that are not listed have the usual strength, or their defaults."""
    has_strength = "lam" in inspect.signature(METHODS[name]).parameters
    return SPECIAL.get(name, {"lam": 0.02} if has_strength else {})


RATES: dict[str, tuple[float, float]] = {"sbp": (0.02, 0.05), "bc-ghs": (0.02, 0.05)}
pytestmark = pytest.mark.filterwarnings("ignore:every unit of group")


def points(count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, INPUTS, generator=random)
    return x, (x[:, 0] + x[:, 1] - x[:, 2] > 0).long()


def trained(name: str, **options: Any) -> Gated:
    """The network after all stages of its method, in a loop of one's own."""
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(1)
    gated = sparsify(MLP((INPUTS, 2)), method=name, **options)
    method, held = gated.method, points(1000, random)
    assert isinstance(method, Method)
    for stage in method.stages:
        if stage.enter is not None:
            stage.enter(gated, accuracy(gated, *held))
        _train(gated, stage.share * PER_STAGE, stage, RATES.get(name, (0.02, 0.02)), random)
    return gated


def accuracy(gated: Gated, x: Tensor, y: Tensor) -> Callable[[], float]:
    def measure() -> float:
        gated.eval()
        with torch.no_grad():
            right = (gated(x).argmax(1) == y).float().mean().item()
        gated.train()
        return 100.0 * right

    return measure


def _train(
    gated: Gated, steps: float, stage: Any, rates: tuple[float, float], random: torch.Generator
) -> None:
    groups = gated.parameter_groups(lr=rates[0] * stage.lr, gate_lr=rates[1] * stage.gate_lr)
    optimizer = torch.optim.Adam(groups)
    for number in range(int(steps)):
        gated.penalty_weight = stage.penalty(number / steps)
        x, y = points(100, random)
        loss = gated.loss(lambda x=x, y=y: F.cross_entropy(gated(x), y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if gated.method.after_step is not None:
            gated.method.after_step(gated, optimizer)


def open_inputs(gated: Gated) -> list[int]:
    found: list[int] = gated.deterministic().nonzero().flatten().tolist()
    return found


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"random"}))
def test_every_method_finds_the_inputs_that_decide(name: str) -> None:
    assert open_inputs(trained(name, **options(name))) == INFORMATIVE


@pytest.mark.parametrize("name", sorted(n for n in METHODS if "lam" in options(n)))
def test_without_strength_none_of_them_is_pruned_away(name: str) -> None:
    without = {**options(name), "lam": 0.0}
    assert set(INFORMATIVE) <= set(open_inputs(trained(name, **without)))


def test_random_removal_does_not_find_them() -> None:
    """What the other methods are measured against: it keeps three inputs, whichever they are."""
    found = open_inputs(trained("random", **options("random")))
    assert len(found) == len(INFORMATIVE)
    assert found != INFORMATIVE
