"""What all tests share: one torch thread, one seed, and the optional folder of outside data."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

DATA_DIR = os.environ.get("L0ARM_DATA_DIR", "")

# The first call of a torch operator is slow, which a deadline would mistake for a failure.
settings.register_profile("l0arm", deadline=None, derandomize=True)
settings.load_profile("l0arm")


def pytest_configure(config: pytest.Config) -> None:
    # One thread sums in one order, run after run, and leaves the cores to pytest-xdist.
    torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without L0ARM_DATA_DIR, deselect the tests that ask for the `data_dir` fixture."""
    if DATA_DIR:
        return
    needing = [item for item in items if "data_dir" in getattr(item, "fixturenames", ())]
    items[:] = [item for item in items if item not in needing]
    if needing:
        config.hook.pytest_deselected(items=needing)


@pytest.fixture
def data_dir() -> Path:
    """The folder of the MNIST files, plain or gzipped."""
    return Path(DATA_DIR)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
