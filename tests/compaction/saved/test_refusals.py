"""What is not sound in a saved folder is refused, with the reason, before it costs anything."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.helpers.saved_mlp import edit_description, gated_mlp, small_mlp
from torch import nn

import l0arm
from l0arm import SavedError
from l0arm.compaction import inspect_saved
from l0arm.models import MLP, LeNet5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return l0arm.save(gated_mlp(), tmp_path / "saved", metrics={"test_accuracy": 98.5})


def test_heads_are_cut_only_where_attention_is_replaced(tmp_path: Path) -> None:
    """Without the replacement the network would load, and fail when it runs."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 4, 16, batch_first=True)
    gated = l0arm.sparsify(model, example_inputs=torch.rand(2, 3, 8), method="l0-arm", lam=0.0)
    gated.phi.data.fill_(9.0)
    gated.phi.data[gated.layout.span(0).start] = -9.0
    saved = l0arm.save(gated, tmp_path / "saved")
    assert inspect_saved(saved).replaced == ("self_attn",)
    edit_description(saved, lambda record: record.update(replaced=[]))
    with pytest.raises(SavedError, match="cuts heads of 'self_attn' without replacing it"):
        l0arm.load(saved, lambda: nn.TransformerEncoderLayer(8, 4, 16, batch_first=True))


def test_a_certificate_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    saved = l0arm.save(gated_mlp(), tmp_path / "saved", example_inputs=torch.rand(4, 6))
    edit_description(saved, lambda record: record["certificate"].update(tolerance=1.0))
    with pytest.raises(ValueError, match="this MLP has no certificate"):
        l0arm.certificate(l0arm.load(saved, small_mlp))


def test_the_factory_must_make_the_original(folder: Path) -> None:
    with pytest.raises(SavedError, match=r"'fc1.weight' is float32 of shape \(300, 784\) in the"):
        l0arm.load(folder, MLP)
    with pytest.raises(SavedError, match=r"tensor 'conv1.bias' is in the model that the factory"):
        l0arm.load(folder, LeNet5)
    with pytest.raises(TypeError, match="plain original, got Gated"):
        l0arm.load(folder, gated_mlp)


def test_another_folder_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(SavedError, match=r"has no l0arm\.json"):
        l0arm.load(tmp_path, small_mlp)
    (folder / "model.safetensors").unlink()
    with pytest.raises(SavedError, match=r"has no model\.safetensors"):
        l0arm.load(folder, small_mlp)


WEIGHTS = {"tensor": "fc1.weight", "dim": None}
REFUSED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "newer": (lambda r: r.update(version=2), "newer l0arm .schema 2, this one reads 1.; upgrade"),
    "foreign": (lambda r: r.update(format="other"), "not describe a network that l0arm.save"),
    "a field too many": (lambda r: r.update(code="import os"), "unknown field 'code'"),
    "a field missing": (lambda r: r.pop("tensors"), "lacks the field 'tensors'"),
    "units twice": (lambda r: r["groups"][0].update(kept=[1, 1, 2, 4]), "keeps units that repeat"),
    "units outside": (lambda r: r["groups"][0].update(kept=[1, 2, 4, 6]), "not among 0..5"),
    "fewer units": (
        lambda r: r["groups"][1].update(kept=[0, 2]),
        r"'fc1.module.weight' is float32 of shape \(2, 4\) in the model cut",
    ),
    "a group less": (
        lambda r: r["groups"].pop(),
        r"'fc2.weight' is float32 of shape \(4, 4\) in the model cut",
    ),
    "a huge shape": (
        lambda r: r["tensors"]["fc2.weight"].update(shape=[2**40, 2**40]),
        "'fc2.weight' is float32 of shape",
    ),
    "no shape": (
        lambda r: r["tensors"]["fc2.weight"].update(shape=[-1]),
        "no tensor has the shape",
    ),
    "no dtype": (lambda r: r["tensors"]["fc2.weight"].update(dtype="pickle"), "'pickle' are not"),
    "a path": (
        lambda r: r["tensors"].update({"../../etc/passwd": r["tensors"].pop("fc2.weight")}),
        "tensor '../../etc/passwd' is in l0arm.json, but not",
    ),
    "a module to exchange": (lambda r: r["replaced"].append("fc2"), "which is Linear and not a"),
    "an attribute that is code": (
        lambda r: r["groups"][0].update(patches=[{"module": "fc1", "attribute": "forward"}]),
        "not an integer attribute",
    ),
    "an attribute": (lambda r: r["attributes"].update({"fc1.in_features": 3}), "the cut gives {}"),
    "an attribute that grows": (
        lambda r: r["groups"][0].update(
            patches=[{"module": "fc1", "attribute": "in_features", "per_unit": -1}]
        ),
        "per_unit=-1; it must be an integer >= 1",
    ),
    "a switch": (
        lambda r: r["groups"][0].update(patches=[{"module": "fc1", "attribute": "training"}]),
        "not an integer attribute",
    ),
    "a count that is no number of tensors": (
        lambda r: r.update(parameters=[1, 10**400]),
        "parameters must be two counts",
    ),
    "a module twice": (lambda r: r["replaced"].extend(["fc1", "fc1"]), "replaced must list names"),
    "a name of megabytes": (
        lambda r: r["groups"][0].update({"x" * 3_000_000: 1}),
        "has an unknown field 'xxxx",
    ),
    "a tensor with a name of megabytes": (
        lambda r: r["groups"][0]["reads"][0].update(tensor="x" * 3_000_000),
        "names the tensor 'xxx",
    ),
    "many attributes": (
        lambda r: r.update(attributes={f"fc{n}.in_features": n for n in range(10_000)}),
        "but the cut gives {}",
    ),
    "many groups of one name": (
        lambda r: r.update(groups=[r["groups"][0]] * 50_000),
        r"cut \d*,?\d+,\d+ positions, more than|must be unique",
    ),
    "a gate for each weight, many times": (
        lambda r: r.update(
            groups=[
                {"name": f"{n}", "units": 30, "kept": [], "reads": [WEIGHTS]} for n in range(4_000)
            ]
        ),
        "cut 120,000 positions, more than",
    ),
    "half a character": (
        lambda r: r["metrics"].update(note="\ud800"),
        "not sound JSON: .*surrogates not allowed",
    ),
    "too many slices": (
        lambda r: r["groups"][0].update(counts=r["groups"][0]["counts"] * 20_000),
        "cut 120,.* positions, more than",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_edited_description_is_refused(what: str, folder: Path) -> None:
    change, reason = REFUSED[what]
    edit_description(folder, change)
    with pytest.raises(SavedError, match=reason) as refusal:
        l0arm.load(folder, small_mlp)
    assert len(str(refusal.value)) < 1000


def test_an_attribute_below_zero_is_refused(folder: Path) -> None:
    def with_heads() -> nn.Module:
        model = small_mlp()
        model.heads = 4
        return model

    def change(record: dict[str, Any]) -> None:
        patch = {"module": "", "attribute": "heads", "per_unit": 3}
        record["groups"][0]["patches"] = [patch]
        record["attributes"] = {".heads": -2}

    edit_description(folder, change)
    with pytest.raises(SavedError, match=r"closes so many units that '\.heads' would be -2"):
        l0arm.load(folder, with_heads)


def test_an_edit_without_a_new_sum_is_refused(folder: Path) -> None:
    edit_description(folder, lambda r: r["metrics"].update(test_accuracy=99.9), sign=False)
    with pytest.raises(SavedError, match="changed after it was written"):
        l0arm.load(folder, small_mlp)


def test_other_weights_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, path)
    with pytest.raises(SavedError, match="its SHA-256 is another"):
        l0arm.load(folder, small_mlp)


def test_shapes_are_checked_before_a_tensor_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(path: Path) -> object:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr("l0arm.compaction.saved.folder.read_tensors", never)
    edit_description(folder, REFUSED["fewer units"][0])
    with pytest.raises(SavedError):
        l0arm.load(folder, small_mlp)
