"""The original of a saved network is built only if it is the one that the folder describes."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.saved_mlp import edit_description
from torch import nn

import l0arm
from l0arm import SavedError
from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import ModelSpec
from l0arm.lab.runs import recorded
from l0arm.lab.runs.building import network_for
from l0arm.lab.runs.trained import deployment_of_saved

NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"model": {"name": "mlp"}, "image": [1, 28, 28], "classes": 10},
    "wide-resnet": {
        "model": {"name": "wide-resnet", "depth": 10, "widen": 1},
        "image": [3, 32, 32],
        "classes": 10,
    },
}
WIDE = {"name": "wide-resnet", "depth": 10, "widen": 1}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A saved network of each kind, with the record from which its original is built."""
    folders = {}
    for name, record in NETWORKS.items():
        spec = ModelSpec.model_validate(record["model"])
        model = network_for(spec, record["image"], record["classes"], "")
        gated = l0arm.sparsify(model, method="l0-arm", lam=0.0)
        path = tmp_path_factory.mktemp(name) / "saved"
        folders[name] = l0arm.save(gated, path, metrics={"network": record})
    return folders


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices that networks are built on."""
    devices = []

    def watched(spec: ModelSpec, image: Sequence[int], classes: int, whose: str) -> nn.Module:
        devices.append(torch.get_default_device().type)
        if devices[-1] == "cpu" and (spec.depth, spec.widen) not in ((28, 10), (10, 1)):
            raise AssertionError("a network was built that the folder does not hold")
        return network_for(spec, image, classes, whose)

    monkeypatch.setattr(recorded, "network_for", watched)
    return devices


def edited(folder: Path, copy: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of a saved folder with another description and the right sum."""
    shutil.copytree(folder, copy)
    edit_description(copy, change)
    return copy


@pytest.mark.parametrize("name", NETWORKS)
def test_a_saved_network_is_deployed_from_its_record(
    name: str, saved: dict[str, Path], built: list[str]
) -> None:
    found = deployment_of_saved(saved[name], None, None)
    assert built == ["meta", "cpu", "cpu"]
    assert found.example.shape == (8, *NETWORKS[name]["image"])
    with torch.no_grad():
        assert found.dense(found.example).shape == found.compact(found.example).shape == (8, 10)


HOSTILE: dict[str, tuple[str, dict[str, Any], str]] = {
    "wide": (
        "wide-resnet",
        {"model": WIDE | {"widen": 200}},
        "in the network that is recorded, but",
    ),
    "too wide": ("wide-resnet", {"model": WIDE | {"widen": 10**18}}, "does not say how"),
    "very wide": ("wide-resnet", {"model": WIDE | {"widen": 2**40}}, "does not say how"),
    "deep": ("wide-resnet", {"model": WIDE | {"depth": 6_000_004}}, "has a depth of 6,000,004"),
    "no depth": ("wide-resnet", {"model": WIDE | {"depth": 11}}, "depth must be 6 n . 4"),
    "large images": ("mlp", {"image": [4096, 4096, 4096]}, "does not say how to build"),
    "other images": ("mlp", {"image": [1, 64, 64]}, "'fc1.weight' is float32 of shape"),
    "more classes": ("mlp", {"classes": 4096}, "'fc3.weight' is float32 of shape"),
    "other network": ("mlp", {"model": {"name": "lenet5"}}, "'conv1.bias' is in the network"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_record_of_another_network_is_refused_before_it_is_built(
    what: str, saved: dict[str, Path], built: list[str], tmp_path: Path
) -> None:
    name, change, reason = HOSTILE[what]
    folder = edited(saved[name], tmp_path / "bad", lambda r: r["metrics"]["network"].update(change))
    with pytest.raises((UserError, SavedError), match=reason):
        deployment_of_saved(folder, None, None)
    assert "cpu" not in built


def test_an_original_that_the_tensors_do_not_justify_is_refused(
    saved: dict[str, Path], built: list[str], tmp_path: Path
) -> None:
    """The whole description agrees that the original was huge; a few weights are left of it."""
    image = [16, 256, 256]

    def change(record: dict[str, Any]) -> None:
        record["metrics"]["network"]["image"] = image
        record["original"]["fc1.weight"]["shape"] = [300, 2**20]

    folder = edited(saved["mlp"], tmp_path / "bad", change)
    reason = r"has 314,604,210 numbers, .* justify no more than 67,108,864; .* --model package"
    with pytest.raises(UserError, match=reason):
        deployment_of_saved(folder, None, None)
    assert "cpu" not in built


def test_a_recorded_image_is_bounded_for_a_network_of_the_users(
    saved: dict[str, Path], tmp_path: Path
) -> None:
    large = {"image": [3, 4096, 4096]}
    folder = edited(saved["mlp"], tmp_path / "bad", lambda r: r["metrics"]["network"].update(large))
    with pytest.raises(UserError, match="--input 3,32,32"):
        deployment_of_saved(folder, l0arm.models.MLP, None)
