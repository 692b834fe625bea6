"""Recipes with the settings of the authors' code: they differ in those alone, and they run."""

from pathlib import Path

import pytest
import torch

from l0arm.lab.data import load_dataset
from l0arm.lab.recipes.recipe import load_recipe
from l0arm.lab.runs.building import build_trainee, start_as_the_authors
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.training import train
from l0arm.models import MLP, LeNet5

ROWS = ("mlp-l0-ar", "mlp-l0-ar-separate", "lenet5-l0-arm", "lenet5-l0-arm-separate")
rows = pytest.mark.parametrize("row", ROWS)


@rows
def test_a_row_differs_in_the_settings_of_the_authors_alone(row: str) -> None:
    paper, authors = load_recipe(row), load_recipe(f"{row}-authors")
    l2 = 5e-4 / 2 if row.startswith("mlp") else 5e-4 / 2 / 60_000
    assert authors.method.options == {"spread_of": "logit", "l2": pytest.approx(l2, rel=1e-4)}
    assert (authors.model.init, authors.training.batch) == ("authors", 128)
    assert {authors.schedule.at(epoch) for epoch in range(200)} == {1.0}
    described = {"name", "title", "control", "paper", "schedule"}
    same = {
        "model": authors.model.model_copy(update={"init": "torch"}),
        "method": authors.method.model_copy(update={"options": {}}),
        "training": authors.training.model_copy(update={"batch": 100}),
    }
    twin = authors.model_copy(update=same).model_dump(exclude=described)
    assert twin == paper.model_dump(exclude=described)
    assert authors.paper is None  # no row of the table


def test_each_setting_can_be_taken_away() -> None:
    away = ["model.init=", "method.options.l2=", "method.options.spread_of="]
    halved = ["training.batch=100", "schedule.every=100", "schedule.factor=0.5"]
    found = load_recipe("mlp-l0-ar-authors", [*away, *halved])
    described = {"name", "title", "control", "paper"}
    paper = load_recipe("mlp-l0-ar")
    assert found.model_dump(exclude=described) == paper.model_dump(exclude=described)


def test_weights_start_with_the_authors_spread() -> None:
    torch.manual_seed(0)
    mlp, lenet = MLP(), LeNet5()
    start_as_the_authors(mlp)
    start_as_the_authors(lenet)
    spreads = {mlp.fc1: 784, mlp.fc2: 300, lenet.fc1: 800, lenet.conv2: 25 * 50}
    for layer, fan in spreads.items():
        assert layer.weight.std().item() == pytest.approx((2 / fan) ** 0.5, rel=0.02)
        assert not layer.bias.any()


@pytest.mark.parametrize("name", ["mlp-l0-ar-authors", "lenet5-l0-arm-authors"])
def test_a_recipe_trains_on_the_embedded_digits(name: str, tmp_path: Path) -> None:
    small = ["data.name=mnist-mini", "data.limit=256", "training.epochs=1"]
    recipe = load_recipe(name, small)
    result = train(RunFolder(tmp_path / "run"), recipe, load_dataset("mnist-mini"))
    assert result["epochs"] == 1
    assert result["architecture"].count("-") == (2 if name.startswith("mlp") else 3)


def test_gates_of_the_small_wrn_start_at_0_99() -> None:
    recipe = load_recipe("small-wrn-l0-arm-authors")
    recipe = recipe.model_copy(update={"model": load_recipe("lenet5-dense").model})
    gated = build_trainee(recipe, load_dataset("mnist-mini"))
    assert gated.gates.probs.mean().item() == pytest.approx(0.99, abs=1e-3)
