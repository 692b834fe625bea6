"""What is saved is what the user has: the small network with the weights that it has now."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import l0arm


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))


@pytest.fixture
def gated() -> l0arm.Gated:
    torch.manual_seed(0)
    gated = l0arm.sparsify(network(), example_inputs=torch.rand(4, 6), lam=0.0)
    gated.phi.data = torch.where(torch.arange(12) % 3 == 0, -9.0, 9.0)
    return gated


def moved(small: nn.Module) -> nn.Module:
    """The network after a step of training, with another output."""
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.add_(0.25)
    return small


def test_a_tuned_network_is_saved_and_loaded_bit_for_bit(
    gated: l0arm.Gated, tmp_path: Path
) -> None:
    small, x = moved(l0arm.compact(gated)), torch.rand(5, 6)
    l0arm.save(small, tmp_path / "small", metrics={"accuracy": 97.5})
    loaded = l0arm.load(tmp_path / "small", network)
    assert torch.equal(loaded(x), small(x))
    assert l0arm.certificate(loaded) == l0arm.certificate(small)
    assert l0arm.compaction.inspect_saved(tmp_path / "small").metrics == {"accuracy": 97.5}


def test_load_then_tune_then_save(gated: l0arm.Gated, tmp_path: Path) -> None:
    l0arm.save(gated, tmp_path / "first")
    again = moved(l0arm.load(tmp_path / "first", network))
    l0arm.save(again, tmp_path / "second")
    x = torch.rand(5, 6)
    assert torch.equal(l0arm.load(tmp_path / "second", network)(x), again(x))


def test_a_copy_can_be_saved_too(gated: l0arm.Gated, tmp_path: Path) -> None:
    small = copy.deepcopy(l0arm.compact(gated))
    l0arm.save(small, tmp_path / "small")
    assert l0arm.load(tmp_path / "small", network)(torch.rand(1, 6)).shape == (1, 3)


def test_the_gated_model_is_refused_once_its_small_network_is_trained(
    gated: l0arm.Gated, tmp_path: Path
) -> None:
    small = l0arm.compact(gated)
    l0arm.prune_rate(gated, "realised")  # cuts a copy of its own
    l0arm.save(gated, tmp_path / "before")
    moved(small)
    with pytest.raises(l0arm.SavedError, match=r"has the weights from before\. Save that network"):
        l0arm.save(gated, tmp_path / "after")
    assert not (tmp_path / "after").exists()
    del small
    l0arm.save(gated, tmp_path / "after")  # nothing newer exists


@pytest.mark.parametrize("uniform", [True, False])
def test_what_belongs_to_a_gated_model_is_refused(
    uniform: bool, gated: l0arm.Gated, tmp_path: Path
) -> None:
    options = {"uniform": True} if uniform else {"example_inputs": torch.rand(2, 6)}
    with pytest.raises(TypeError, match="a small network is saved as it is"):
        l0arm.save(l0arm.compact(gated), tmp_path / "small", **options)


def test_a_network_of_unknown_origin_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="which know what was cut; got Sequential"):
        l0arm.save(network(), tmp_path / "small")


def test_a_network_that_was_cut_twice_is_refused(gated: l0arm.Gated, tmp_path: Path) -> None:
    again = l0arm.sparsify(l0arm.compact(gated), example_inputs=torch.rand(4, 6), lam=0.0)
    again.phi.data = torch.where(torch.arange(8) % 2 == 0, -9.0, 9.0)
    with pytest.raises(l0arm.SavedError, match="this network was cut twice"):
        l0arm.save(l0arm.compact(again), tmp_path / "small")
