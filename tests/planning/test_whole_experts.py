"""Whole experts of mixtures with their row of the router: a closed one is never chosen."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.cut_networks import close, compare, compare_gradients, cut, doubled
from tests.helpers.mixtures import Mixture
from tests.helpers.tiny_transformers import mixtral, qwen3_moe
from torch import Tensor, nn

from l0arm import (
    Gated,
    Group,
    Plan,
    Route,
    Slice,
    certificate,
    compact,
    expand,
    expected_flops,
    load,
    plan,
    save,
    shrink,
    sparsify,
)

IDS = torch.tensor([[3, 14, 15, 9, 26, 5, 35], [8, 9, 7, 9, 32, 38, 4]])


def gated_mixture(**options: Any) -> tuple[nn.Module, tuple[Tensor, ...], Plan, Gated]:
    torch.manual_seed(0)
    model, inputs = doubled(Mixture(**options), torch.randn(9, 4))
    dense = copy.deepcopy(model)
    found = plan(model, inputs, include="routers.*", experts=True)
    gated = sparsify(model, found, "l0-arm", lam=1e-3, example_inputs=inputs).double()
    return dense, inputs, found, gated


@pytest.mark.parametrize(
    "options", [{}, {"late": True}, {"normalised": False}, {"count": 1}], ids=str
)
def test_a_cut_mixture_is_the_one_without_the_scores_of_closed_experts(
    options: dict[str, Any],
) -> None:
    dense, inputs, found, gated = gated_mixture(**options)
    assert [(g.name, g.units, g.floor) for g in found.groups] == [
        (f"routers.{n}", 6, options.get("count", 2)) for n in range(2)
    ]
    # a row and a bias of the router, and the expert
    assert [entry.weights for entry in found.planned] == [6 * (6 + 1 + 30 + 5 + 30)] * 2
    masks = [[1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 0, 1], [1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0]]
    for mask in masks:
        z = torch.tensor(mask).double()
        small: Any = cut(gated, z)
        oracle: Any = copy.deepcopy(dense)
        oracle.with_closed(z)
        assert [len(r.weight) for r in small.routers] == [int(z[:6].sum()), int(z[6:].sum())]
        assert small.experts[0].up.shape == (int(z[:6].sum()), 5, 6)
        assert not any("forward" in vars(module) for module in small.modules())
        for training in (False, True):
            compare(small.train(training), oracle.train(training), inputs)
        compare_gradients(gated, inputs)


@pytest.mark.parametrize("late", [False, True])
def test_draws_with_fewer_experts_than_are_chosen(late: bool) -> None:
    """What is left is chosen. Without any expert, the mixture adds zero."""
    dense, inputs, _, gated = gated_mixture(late=late, count=3)
    oracle: Any = copy.deepcopy(dense)
    few = torch.tensor([0.0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1])
    oracle.with_closed(few)
    for router in oracle.routers:  # as many as are open
        router.count = 6 - len(router.closed)
    for execution in ("sliced", "masked"):
        gated.execution = execution  # type: ignore[assignment]
        with gated.drawn(few.double()):
            torch.testing.assert_close(gated(*inputs), oracle(*inputs), rtol=1e-12, atol=1e-12)
        with pytest.warns(match="every unit of group"), gated.drawn(torch.zeros(12).double()):
            none = gated(*inputs)
        gated._warned.clear()
        want = oracle.last(oracle.first(*inputs))
        torch.testing.assert_close(none, want, rtol=1e-12, atol=1e-12)


def test_as_many_experts_stay_as_are_chosen() -> None:
    _, _, found, gated = gated_mixture(count=3)
    close(gated, torch.zeros(12))
    small: Any = gated.compact()
    assert [len(router.weight) for router in small.routers] == [3, 3]
    assert certificate(small).passed
    assert [group.floor for group in found.with_floor(1).groups] == [3, 3]


def test_training_shrink_expand_and_cost() -> None:
    _, inputs, _, gated = gated_mixture()
    optimizer = torch.optim.SGD(gated.parameter_groups(0.01, 0.5))
    for _ in range(3):
        loss = gated.loss(lambda: gated(*inputs).square().mean())
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    assert gated.phi.grad is not None
    assert bool(gated.phi.grad.any())
    z = torch.tensor([1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 0, 1]).double()
    close(gated, z)
    flops = expected_flops(gated, *inputs)
    # Every token runs through two experts; only the scores of closed ones are saved.
    saved = 2 * 9 * 6 * (12 - float(gated.gates.open_probability.detach().sum()))
    assert flops.dense - flops.inference == pytest.approx(saved, rel=1e-6)
    small: Any = gated.compact()
    want = small(*inputs)
    with pytest.raises(ValueError, match="no weights give a dense router the score"):
        expand(small, gated)
    shrunk = shrink(gated)
    assert [group.units for group in shrunk.groups] == [4, 2]
    torch.testing.assert_close(shrunk.compact()(*inputs), want, rtol=1e-10, atol=1e-10)


def test_units_that_are_no_experts_stay_and_say_why() -> None:
    class Soft(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner, self.last = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.inner(self.first(x)).softmax(-1))

    class Counted(Mixture):
        def forward(self, x: Tensor) -> Tensor:
            _, numbers = self.routers[0](self.first(x))
            return super().forward(x) + (numbers == 3).sum()

    found = plan(Soft(), torch.randn(3, 4), experts=True)
    assert {s.layer: s.reason for s in found.skipped}["inner"] == "softmax mixes the units"
    found = plan(Counted(), torch.randn(3, 4), experts=True)
    assert {s.layer: s.reason for s in found.skipped}[
        "routers.0"
    ] == "eq computes with their numbers"
    assert "routers.1" in [group.name for group in found.groups]
    found = plan(Mixture(), torch.randn(3, 4))
    assert not any(group.routes for group in found.groups)


def test_a_plan_with_experts_is_data() -> None:
    _, _, found, _ = gated_mixture()
    assert Plan.from_json(found.to_json()).groups == found.groups
    reads = (Slice("up", 0),)
    with pytest.raises(
        ValueError, match="a router chooses 2, and floor=0; set floor to at least 2"
    ):
        Group("experts", 4, reads=reads, routes=(Route("", "here", -1, chosen=2),))


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["eager", "batched_mm", "grouped_mm"])
@pytest.mark.parametrize("make", [mixtral, qwen3_moe])
@pytest.mark.filterwarnings("ignore")
def test_experts_of_transformers(make: Any, implementation: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = make()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.set_experts_implementation(implementation)
    dense = copy.deepcopy(model)
    found = plan(model, (), {"input_ids": IDS}, include="*.mlp.gate", experts=True)
    assert [(g.name, g.units, g.floor) for g in found.groups] == [
        (f"model.layers.{n}.mlp.gate", 4, 2) for n in range(2)
    ]
    kwargs = {"input_ids": IDS}
    gated: Any = sparsify(model, found, "l0-arm", lam=0.0, example_kwargs=kwargs)
    z = torch.tensor([1.0, 0, 1, 1, 0, 1, 0, 1])
    close(gated, z)
    for layer, gates in zip(dense.model.layers, z.view(2, 4), strict=True):
        _without_scores(layer.mlp.gate, gates == 0)
    want = dense(input_ids=IDS).logits
    with gated.drawn(z):
        sliced = gated(input_ids=IDS).logits
    sliced.square().mean().backward()
    assert all(p.grad is not None for p in model.model.layers[0].mlp.parameters())
    small: Any = compact(gated)
    assert certificate(small).passed
    assert [len(layer.mlp.gate.weight) for layer in small.model.layers] == [3, 2]
    assert [layer.mlp.experts.num_experts for layer in small.model.layers] == [3, 2]
    save(small, tmp_path / "small")
    for other in ("eager", "batched_mm", "grouped_mm"):
        small.set_experts_implementation(other)
        for logits in (sliced, small(input_ids=IDS).logits):
            torch.testing.assert_close(logits, want, rtol=1e-4, atol=1e-4)
    again = load(tmp_path / "small", make)
    torch.testing.assert_close(again(input_ids=IDS).logits, want, rtol=1e-4, atol=1e-4)


def _without_scores(router: Any, closed: Tensor) -> None:
    """An oracle: the router of a mixture with -inf for closed experts, before its softmax."""

    def forward(hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = nn.functional.linear(hidden.reshape(-1, hidden.shape[-1]), router.weight)
        scores = scores.masked_fill(closed, -torch.inf)
        best, numbers = scores.softmax(-1).topk(router.top_k, dim=-1)
        if getattr(router, "norm_topk_prob", True):
            best = best / best.sum(-1, keepdim=True)
        return scores, best, numbers

    router.forward = forward
