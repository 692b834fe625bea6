"""Experts of mixtures: hidden units inside all experts of a layer go together."""

import copy
from typing import Any

import pytest
import torch
from tests.helpers.closing import with_zeros
from tests.helpers.tiny_transformers import mixtral, qwen3_moe
from torch import nn

from l0arm import certificate, compact, plan, sparsify

IDS = torch.tensor([[3, 14, 15, 9, 26, 5, 35], [8, 9, 7, 9, 32, 38, 4]])


@pytest.mark.parametrize(
    ("make", "implementation"),
    [
        (mixtral, "batched_mm"),
        pytest.param(mixtral, "eager", marks=pytest.mark.slow),
        pytest.param(qwen3_moe, "batched_mm", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_hidden_units_of_experts_are_cut(make: Any, implementation: str) -> None:
    torch.manual_seed(1)
    model = make().double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.set_experts_implementation(implementation)
    found = plan(model, (), {"input_ids": IDS}, include="*.experts")
    assert [(g.name, g.units) for g in found.groups] == [
        (f"model.layers.{n}.mlp.experts", 24) for n in range(2)
    ]
    assert {entry.execution for entry in found.planned} == {"as is"}
    # gate and up projection of 4 experts, and the down projection
    assert [entry.weights for entry in found.planned] == [3 * 4 * 24 * 32] * 2
    dense = copy.deepcopy(model)
    gated: Any = sparsify(model, found, "l0-arm", lam=0.0, example_kwargs={"input_ids": IDS})
    z = (torch.rand(gated.layout.gates) < 0.5).double()
    gated.phi.data = torch.where(z > 0, 9.0, -9.0).double()
    want = with_zeros(dense, found.groups, z)(input_ids=IDS).logits
    with gated.drawn(z):
        sliced = gated(input_ids=IDS).logits
    sliced.square().mean().backward()
    assert all(p.grad is not None for p in model.model.layers[0].mlp.experts.parameters())
    small: Any = compact(gated)
    assert certificate(small).passed
    assert small.model.layers[0].mlp.experts.down_proj.shape == (4, 32, int(z[:24].sum()))
    for implementation in ("batched_mm", "eager"):
        small.set_experts_implementation(implementation)
        for logits in (sliced, small(input_ids=IDS).logits):
            torch.testing.assert_close(logits, want, rtol=1e-5, atol=1e-5)
