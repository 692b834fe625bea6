"""Planned networks of every family come back from disk as they were compacted, bit for bit."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.helpers.planned_networks import NETWORKS
from tests.helpers.plans import Network
from torch import nn

import l0arm
from l0arm import Plan
from l0arm.compaction import inspect_saved

Planned = Callable[[str], Plan]


@pytest.mark.parametrize("name", NETWORKS)
def test_round_trip(name: str, network: Network, planned: Planned, tmp_path: Path) -> None:
    model, inputs = network(name)
    fresh = copy.deepcopy(model)
    for tensor in fresh.parameters():  # the saved weights count, not the factory's
        nn.init.uniform_(tensor)
    groups = planned(name)
    gated = l0arm.sparsify(model, groups, "l0-arm", example_inputs=inputs, lam=0.0).double().eval()
    for seed in range(3):
        torch.manual_seed(seed)
        gated.phi.data.normal_(0, 0.5)
        if seed == 2:  # one group whole: a stand-in remains
            gated.phi.data[gated.layout.span(0)] = -9.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", l0arm.EmptyGroupWarning)
            folder = l0arm.save(gated, tmp_path / str(seed))
            small = gated.compact().eval()
        loaded = l0arm.load(folder, lambda: copy.deepcopy(fresh))
        with torch.no_grad():
            assert torch.equal(loaded(*inputs), small(*inputs))
        assert loaded.state_dict().keys() == small.state_dict().keys()


def test_exchanged_attention_is_recorded(
    network: Network, planned: Planned, tmp_path: Path
) -> None:
    model, inputs = network("transformer encoder")
    groups = planned("transformer encoder")
    gated = l0arm.sparsify(model, groups, "l0-arm", example_inputs=inputs, lam=0.0).double()
    gated.phi.data.fill_(9.0)
    saved = inspect_saved(l0arm.save(gated, tmp_path / "saved"))
    assert saved.replaced == ("encoder.layers.0.self_attn", "encoder.layers.1.self_attn")


def test_patched_attributes_are_recorded(
    network: Network, planned: Planned, tmp_path: Path
) -> None:
    model, inputs = network("resnext")
    groups = planned("resnext")
    gated = l0arm.sparsify(model, groups, "l0-arm", example_inputs=inputs, lam=0.0).double()
    gated.phi.data.fill_(9.0)
    gated.phi.data[0] = -9.0  # one of the four groups of the convolution
    saved = inspect_saved(l0arm.save(gated, tmp_path / "saved"))
    assert saved.attributes == {"body.1.0.groups": 3}
    assert [len(kept) for kept in saved.kept] == [3, 6]
