"""With one width for all layers, transformers alone loads what was saved."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.tiny_transformers import bert, gpt2, llama
from torch import nn

import l0arm
from l0arm import Gated, SavedError
from l0arm.compaction import inspect_saved
from l0arm.models import MLP

transformers = pytest.importorskip("transformers")


def gated_mlps(make: Callable[[], nn.Module], keep: Callable[[str], bool]) -> Gated:
    """The groups whose name passes; the first layer far narrower than the second."""
    torch.manual_seed(0)
    model = make().eval()
    kwargs = {"input_ids": torch.randint(3, 50, (2, 7)), "return_dict": False}
    found = l0arm.plan(model, (), kwargs)
    found = replace(found, planned=tuple(e for e in found.planned if keep(e.group.name)))
    gated = l0arm.sparsify(model, found, "l0-arm", lam=0.0)
    gated.phi.data.normal_(0.0, 0.3)
    gated.phi.data[gated.layout.span(0)] -= 0.2
    return gated.eval()


def is_mlp(name: str) -> bool:
    return ".mlp." in name or ".intermediate." in name


def first(output: Any) -> torch.Tensor:
    return output[0]


@pytest.mark.parametrize(
    "make",
    [pytest.param(bert, marks=pytest.mark.slow), pytest.param(gpt2, marks=pytest.mark.slow), llama],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_transformers_alone_loads_it(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    gated = gated_mlps(make, is_mlp)
    original = copy.deepcopy(make())
    open_units = [int(part.sum()) for part in gated.per_group(gated.deterministic() != 0).values()]
    assert open_units[0] < open_units[1]
    folder = l0arm.save(gated, tmp_path / "saved", uniform=True)
    told = inspect_saved(folder)
    assert [len(kept) for kept in told.kept] == [max(open_units)] * 2
    plain = type(original).from_pretrained(folder).eval()
    ours = l0arm.load(folder, lambda: copy.deepcopy(original))
    ids = torch.randint(3, 50, (2, 7))
    with torch.no_grad():
        torch.testing.assert_close(first(plain(ids)), first(ours(ids)), rtol=1e-5, atol=1e-6)
    assert plain.num_parameters() == told.parameters[1] < told.parameters[0]


def test_the_reopened_units_are_the_most_probable(tmp_path: Path) -> None:
    gated = gated_mlps(llama, is_mlp)
    pi = gated.gates.open_probability.detach()[gated.layout.span(0)]
    told = inspect_saved(l0arm.save(gated, tmp_path / "saved", uniform=True))
    assert set(told.kept[0]) == set(pi.topk(len(told.kept[0])).indices.tolist())
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["intermediate_size"] == len(told.kept[0])
    assert config["architectures"] == ["LlamaForCausalLM"]


def test_closed_heads_and_missing_layers_are_refused(tmp_path: Path) -> None:
    everything = gated_mlps(llama, lambda name: True)
    everything.phi.data[0] = -9.0
    with pytest.raises(SavedError, match=r"units of group '.*q_proj' are closed; plan without"):
        l0arm.save(everything, tmp_path / "saved", uniform=True)
    one = gated_mlps(llama, lambda name: is_mlp(name) and ".0." in name)
    with pytest.raises(SavedError, match="every layer gated: 1 of 2 are"):
        l0arm.save(one, tmp_path / "saved", uniform=True)


def test_other_models_are_refused(tmp_path: Path) -> None:
    gated = l0arm.sparsify(MLP(), method="l0-arm", lam=0.0)
    with pytest.raises(SavedError, match="that are bert, gpt2, llama; got MLP"):
        l0arm.save(gated, tmp_path / "saved", uniform=True)
    assert list(tmp_path.iterdir()) == []
