"""A saved network comes back bit for bit; what is not sound is refused with the reason."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import l0arm
from l0arm import Gated, Group, SavedError, Slice
from l0arm.compaction import inspect_saved
from l0arm.compaction.saved.description import digest
from l0arm.models import MLP, LeNet5, WideResNet

MAKE: dict[str, Callable[[], nn.Module]] = {
    "mlp": MLP,
    "lenet5": LeNet5,
    "wrn": lambda: WideResNet(10, 1),
}
every_network = pytest.mark.parametrize("name", MAKE)


def small_mlp() -> MLP:
    return MLP((6, 5, 4, 3))


def gated_mlp() -> Gated:
    gated = l0arm.sparsify(small_mlp(), method="l0-arm", lam=0.0)
    closed = torch.tensor([0, 3, 7, 12])
    gated.phi.data.fill_(9.0)
    gated.phi.data[closed] = -9.0
    return gated


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return l0arm.save(gated_mlp(), tmp_path / "saved", metrics={"test_accuracy": 98.5})


def edit(folder: Path, change: Callable[[dict[str, Any]], object], *, sign: bool = True) -> None:
    """Change the description; ``sign`` gives it the right sum again."""
    path = folder / "l0arm.json"
    record = json.loads(path.read_text())
    change(record)
    if sign:
        record["sha256"] = digest(record)
    path.write_text(json.dumps(record))


@every_network
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_round_trip(
    name: str, dtype: torch.dtype, network: Callable[..., Any], tmp_path: Path
) -> None:
    net = network(name, dtype)
    gated = net.gated(z=net.gates(0, fractional=True)).eval()
    saved = l0arm.save(gated, tmp_path / "saved")
    loaded, small = l0arm.load(saved, MAKE[name]), gated.compact().eval()
    with torch.no_grad():
        assert torch.equal(loaded(net.x), small(net.x))
    want, got = small.state_dict(), loaded.state_dict()
    assert want.keys() == got.keys()
    for key, tensor in want.items():
        assert torch.equal(tensor, got[key])
        assert (tensor.dtype, tensor.stride()) == (got[key].dtype, got[key].stride())


def test_an_empty_group_comes_back_as_its_stand_in(
    network: Callable[..., Any], tmp_path: Path
) -> None:
    net = network("lenet5")
    gated = net.gated(z=net.gates(0, empty=["fc2"])).eval()
    with pytest.warns(l0arm.EmptyGroupWarning):
        saved = l0arm.save(gated, tmp_path / "saved")
    with torch.no_grad():
        assert torch.equal(l0arm.load(saved, LeNet5)(net.x), gated.compact().eval()(net.x))


def test_gates_on_single_weights_come_back(tmp_path: Path) -> None:
    weights = Group("weights", 12, reads=(Slice("weight", None),))
    gated = l0arm.sparsify(nn.Linear(4, 3), [weights], "l0-arm", lam=0.0)
    gated.phi.data.normal_()
    loaded = l0arm.load(l0arm.save(gated, tmp_path / "saved"), lambda: nn.Linear(4, 3))
    assert torch.equal(loaded.weight, gated.compact().weight)


def test_frozen_weights_and_their_kind_stay_the_factorys(folder: Path) -> None:
    def frozen() -> nn.Module:
        return small_mlp().requires_grad_(False)

    loaded = l0arm.load(folder, frozen)
    assert all(isinstance(p, nn.Parameter) and not p.requires_grad for p in loaded.parameters())
    assert not loaded.training


def test_what_the_folder_says(folder: Path) -> None:
    described = inspect_saved(folder)
    assert described.model == "l0arm.models.mlp.MLP"
    assert described.kept == ((1, 2, 4, 5), (0, 2, 3, 4), (0, 2, 3))
    assert described.original["fc1.weight"].shape == (5, 6)
    assert described.tensors["fc1.module.weight"].shape == (4, 4)
    assert described.parameters == (
        6 * 5 + 5 + 5 * 4 + 4 + 4 * 3 + 3,
        4 * 4 + 4 + 4 * 3 + 3 + 3 * 3 + 3,
    )
    assert described.metrics == {"test_accuracy": 98.5}
    assert described.certificate is None


def test_dead_units_are_not_among_the_kept(tmp_path: Path) -> None:
    """A filter of LeNet-5 none of whose 16 flattened outputs is read is gone."""
    gated = l0arm.sparsify(LeNet5(), method="l0-arm", lam=0.0)
    gated.phi.data.fill_(9.0)
    gated.phi.data[gated.layout.span(2)][:16] = -9.0
    described = inspect_saved(l0arm.save(gated, tmp_path / "saved"))
    assert described.kept[1] == tuple(range(1, 50))


def test_the_card_says_how_to_load_it(folder: Path) -> None:
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: l0arm\n")
    assert "MLP, 4-4-3" in card
    assert "from l0arm.models.mlp import MLP" in card
    assert "| fc2 | 5 | 4 |" in card
    assert "test_accuracy: 98.5" in card


def test_the_certificate_is_kept_where_an_example_is_known(tmp_path: Path) -> None:
    gated = gated_mlp()
    x = torch.rand(4, 6)
    saved = l0arm.save(gated, tmp_path / "saved", example_inputs=x)
    record = inspect_saved(saved).certificate
    assert record is not None
    assert record["passed"]
    assert record["dtype"] == "float64"
    assert 0 <= record["largest_difference"] <= record["tolerance"] == 1e-10
    assert {entry["mode"] for entry in record["judged"]} == {"eval", "train"}
    loaded, small = l0arm.load(saved, small_mlp), gated.compact(example_inputs=x)
    assert l0arm.certificate(loaded) == l0arm.certificate(small)


def test_without_an_example_a_saved_network_has_no_certificate(folder: Path) -> None:
    assert inspect_saved(folder).certificate is None
    with pytest.raises(ValueError, match="this MLP has no certificate"):
        l0arm.certificate(l0arm.load(folder, small_mlp))


def test_a_certificate_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    saved = l0arm.save(gated_mlp(), tmp_path / "saved", example_inputs=torch.rand(4, 6))
    edit(saved, lambda record: record["certificate"].update(tolerance=1.0))
    with pytest.raises(ValueError, match="this MLP has no certificate"):
        l0arm.certificate(l0arm.load(saved, small_mlp))


def test_a_network_that_would_differ_is_not_written(tmp_path: Path) -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.two(self.one(x).softmax(1))
            return y

    wrong = Group(
        "hidden",
        6,
        reads=(Slice("two.weight", 1),),
        makes=(Slice("one.weight", 0), Slice("one.bias", 0)),
    )
    gated = l0arm.sparsify(Mixing(), (wrong,), lam=0.0)
    with pytest.raises(l0arm.CertificateError, match="because of group 'hidden'"):
        l0arm.save(gated, tmp_path / "saved", example_inputs=torch.rand(4, 4))
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_not_overwritten(folder: Path) -> None:
    before = (folder / "l0arm.json").read_bytes()
    with pytest.raises(FileExistsError, match=r"exists; choose another folder, or .* force=True"):
        l0arm.save(gated_mlp(), folder)
    assert (folder / "l0arm.json").read_bytes() == before


def test_force_replaces_a_saved_network_whole(folder: Path) -> None:
    (folder / "model.onnx").write_text("of the old network")
    l0arm.save(gated_mlp(), folder, metrics={"new": 1}, force=True)
    assert inspect_saved(folder).metrics == {"new": 1}
    assert sorted(p.name for p in folder.iterdir()) == [
        "README.md",
        "l0arm.json",
        "model.safetensors",
    ]
    assert [p.name for p in folder.parent.iterdir()] == ["saved"]


def test_force_does_not_delete_what_others_wrote(folder: Path, tmp_path: Path) -> None:
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match=r"also holds thesis\.tex"):
        l0arm.save(gated_mlp(), folder, force=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="is not a saved network"):
        l0arm.save(gated_mlp(), other, force=True)
    assert (other / "thesis.tex").exists()


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(SavedError, match="cannot be written as JSON"):
        l0arm.save(gated_mlp(), tmp_path / "saved", metrics={"accuracy": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_text_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SavedError, match="surrogates not allowed"):
        l0arm.save(gated_mlp(), tmp_path / "saved", metrics={"note": "\ud800"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_all_files_of_a_folder_have_the_permissions_of_the_umask(
    mask: int, mode: int, tmp_path: Path
) -> None:
    before = os.umask(mask)
    try:
        saved = l0arm.save(gated_mlp(), tmp_path / "saved")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in saved.iterdir()} == {mode}


def test_heads_are_cut_only_where_attention_is_replaced(tmp_path: Path) -> None:
    """Without the replacement the network would load, and fail when it runs."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 4, 16, batch_first=True)
    gated = l0arm.sparsify(model, example_inputs=torch.rand(2, 3, 8), method="l0-arm", lam=0.0)
    gated.phi.data.fill_(9.0)
    gated.phi.data[gated.layout.span(0).start] = -9.0
    saved = l0arm.save(gated, tmp_path / "saved")
    assert inspect_saved(saved).replaced == ("self_attn",)
    edit(saved, lambda record: record.update(replaced=[]))
    with pytest.raises(SavedError, match="cuts heads of 'self_attn' without replacing it"):
        l0arm.load(saved, lambda: nn.TransformerEncoderLayer(8, 4, 16, batch_first=True))


def test_a_failure_of_force_leaves_the_old_one(folder: Path) -> None:
    before = inspect_saved(folder)
    with pytest.raises(SavedError):
        l0arm.save(gated_mlp(), folder, metrics={"model": object()}, force=True)
    assert inspect_saved(folder) == before
    assert [p.name for p in folder.parent.iterdir()] == ["saved"]


def test_only_gated_models_are_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"save takes the gated model, .* got MLP"):
        l0arm.save(small_mlp(), tmp_path / "saved")  # type: ignore[arg-type]


def test_extra_state_is_refused(tmp_path: Path) -> None:
    class Remembering(nn.Linear):
        def get_extra_state(self) -> object:
            return {"anything": object()}

    group = Group("in", 4, reads=(Slice("weight", 1),))
    gated = l0arm.sparsify(Remembering(4, 2), [group], "l0-arm", lam=0.0)
    with pytest.raises(SavedError, match="keeps extra state"):
        l0arm.save(gated, tmp_path / "saved")


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
    edit(folder, change)
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

    edit(folder, change)
    with pytest.raises(SavedError, match=r"closes so many units that '\.heads' would be -2"):
        l0arm.load(folder, with_heads)


def test_an_edit_without_a_new_sum_is_refused(folder: Path) -> None:
    edit(folder, lambda r: r["metrics"].update(test_accuracy=99.9), sign=False)
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
    edit(folder, REFUSED["fewer units"][0])
    with pytest.raises(SavedError):
        l0arm.load(folder, small_mlp)


@pytest.mark.parametrize("made", [small_mlp(), "MLP"])
def test_a_factory_is_not_a_model(made: Any, folder: Path) -> None:
    message = r"load takes what makes the original model \(a class or a function\), got (MLP|str)"
    with pytest.raises(TypeError, match=message):
        l0arm.load(folder, made)


@pytest.mark.parametrize("metrics", [{1: 0.5, 2: 0.4}, {"per class": {2: 0.1, 10: 0.2}}])
def test_metrics_with_numbers_as_keys_come_back_with_text(
    metrics: dict[Any, Any], tmp_path: Path
) -> None:
    l0arm.save(gated_mlp(), tmp_path / "saved", metrics=metrics)
    l0arm.load(tmp_path / "saved", small_mlp)
    assert inspect_saved(tmp_path / "saved").metrics == json.loads(json.dumps(metrics))


def test_numbers_of_a_kind_that_cannot_be_read_again_are_refused(tmp_path: Path) -> None:
    gated = gated_mlp()
    gated.model.register_buffer("turns", torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(SavedError, match="'turns' holds numbers of kind complex64"):
        l0arm.save(gated, tmp_path / "saved")
    assert not list(tmp_path.iterdir())


def test_a_link_stays_and_what_it_leads_to_is_replaced(folder: Path) -> None:
    link = folder.with_name("latest")
    link.symlink_to(folder.name)
    l0arm.save(gated_mlp(), link, metrics={"test_accuracy": 99.0}, force=True)
    assert link.is_symlink()
    assert inspect_saved(folder).metrics == {"test_accuracy": 99.0}
    assert sorted(path.name for path in folder.parent.iterdir()) == ["latest", "saved"]
