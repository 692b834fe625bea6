"""Random removal: the number of units is given, and every choice is equally likely."""

from typing import Any

import numpy as np
import pytest
import torch

from l0arm import architecture, sparsify
from l0arm.methods import random_units
from l0arm.methods._random_units import CloseAtRandom
from l0arm.models import MLP, WideResNet


def test_the_given_number_of_units_is_kept() -> None:
    gated = sparsify(WideResNet(10, 1), method="random")
    CloseAtRandom([7 / 16, 15 / 32, 33 / 64])(gated, None)
    assert architecture(gated) == "7-15-33"


def test_every_unit_is_equally_likely_to_be_kept() -> None:
    torch.manual_seed(0)
    gated = sparsify(MLP((10, 4)), method="random")
    stayed = torch.zeros(10)
    for _ in range(2000):
        CloseAtRandom(0.3)(gated, None)
        stayed += gated.deterministic()
    # Binomial(2000, 0.3) has a standard deviation of 20.5.
    assert float((stayed - 600).abs().max()) < 4 * 20.5


def test_a_seed_fixes_the_choice() -> None:
    gated, chosen = sparsify(MLP((30, 4)), method="random"), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        CloseAtRandom(0.5)(gated, None)
        chosen.append(gated.deterministic().tolist())
    assert chosen[0] == chosen[1] != chosen[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"keep": 0.0}, "keep is a share"), ({"train": 1.0}, "train is a share of the epochs")],
)
def test_wrong_shares_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_units(**options)


def test_given_units_are_kept_and_no_others() -> None:
    gated = sparsify(MLP((4, 3, 2)), method="random", units=[[0, 3], [1]])
    (stage,) = gated.method.stages
    assert stage.enter is not None
    stage.enter(gated, None)
    assert gated.deterministic().tolist() == [1, 0, 0, 1, 0, 1, 0]


@pytest.mark.parametrize("make", [torch.tensor, np.array, tuple, set])
def test_numbers_of_units_may_come_from_anywhere(make: Any) -> None:
    gated = sparsify(MLP((4, 3, 2)), method="random", units=[make([0, 3]), make([1])])
    stage = gated.method.stages[0]
    assert stage.enter is not None
    stage.enter(gated, None)
    assert gated.deterministic().tolist() == [1, 0, 0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ([[0]], "a list for each of 'fc1', 'fc2'; got 1"),
        ([[0], [3]], "'fc2' must be numbers from 0 to 2"),
        ([[], [1]], "at least one"),
        ([0, 1], r"one list of numbers per group, such as \[\[0, 3\], \[1\]\]"),
        ([None, [1]], "one list of numbers per group"),
        ([[True, False, True], [1]], "of a mask, take the positions"),
        ({"fc1": [0], "fc2": [1]}, "one list of numbers per group"),
    ],
)
def test_units_that_the_model_does_not_have_are_refused(
    units: list[list[int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        sparsify(MLP((4, 3, 2)), method="random", units=units)
