"""Recipes that run in a fraction of a second, their data, and finished runs of them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from l0arm.lab.data import Dataset, load_dataset
from l0arm.lab.recipes.recipe import Recipe, load_recipe
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.training import train

QUICK = ("data.name=mnist-mini", "data.limit=200", "training.batch=50", "training.epochs=3")


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load_dataset("mnist-mini")


@pytest.fixture(scope="session")
def few_digits(digits: Dataset) -> Dataset:
    """100 test images, for runs that are evaluated after many epochs."""
    images, labels = digits.test_images[:100], digits.test_labels[:100]
    return replace(digits, test_images=images, test_labels=labels)


def quick_recipe(name: str = "mlp-l0-arm", *overrides: str) -> Recipe:
    return load_recipe(name, [*QUICK, *overrides])


@pytest.fixture
def quick() -> Callable[..., Recipe]:
    """Recipes of three epochs of four steps."""
    return quick_recipe


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, digits: Dataset) -> Callable[..., RunFolder]:
    """Finished runs of quick recipes, each of them trained once. Tests only read them."""
    runs: dict[str, RunFolder] = {}

    def trained(name: str = "mlp-l0-arm", *overrides: str) -> RunFolder:
        recipe = quick_recipe(name, *overrides)
        key = recipe.model_dump_json()
        if key not in runs:
            runs[key] = RunFolder(tmp_path_factory.mktemp("finished") / name / "seed-0")
            with torch.random.fork_rng():
                train(runs[key], recipe, digits)
        return runs[key]

    return trained
