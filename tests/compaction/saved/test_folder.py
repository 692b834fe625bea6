"""A saved network comes back bit for bit; a folder appears whole or not at all."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.saved_mlp import gated_mlp, small_mlp
from torch import Tensor, nn

import l0arm
from l0arm import Group, SavedError, Slice
from l0arm.compaction import inspect_saved
from l0arm.models import MLP, LeNet5, WideResNet

MAKE: dict[str, Callable[[], nn.Module]] = {
    "mlp": MLP,
    "lenet5": LeNet5,
    "wrn": lambda: WideResNet(10, 1),
}
every_network = pytest.mark.parametrize("name", MAKE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return l0arm.save(gated_mlp(), tmp_path / "saved", metrics={"test_accuracy": 98.5})


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
