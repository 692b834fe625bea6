"""A recipe that runs in a fraction of a second, and its data."""

from collections.abc import Callable
from pathlib import Path

import pytest

from l0arm.lab.data import Dataset, load_dataset
from l0arm.lab.recipes.recipe import Recipe, load_recipe
from l0arm.lab.runs.folder import RunFolder

QUICK = ("data.name=mnist-mini", "data.limit=200", "training.batch=50", "training.epochs=3")


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load_dataset("mnist-mini")


@pytest.fixture
def quick() -> Callable[..., Recipe]:
    def load(name: str = "mlp-l0-arm", *overrides: str) -> Recipe:
        return load_recipe(name, [*QUICK, *overrides])

    return load


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")
