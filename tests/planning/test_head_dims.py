"""Positions within heads are units: cut, the network equals the one with zeros for them."""

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.helpers import attentions
from tests.helpers.attentions import Net, OfTorch, Rotary
from tests.helpers.closing import with_zeros
from tests.helpers.cut_networks import check_cut, close, described, doubled
from torch import Tensor, nn

from l0arm import Plan, compact, expand, load, plan, save, sparsify
from l0arm.compaction import shrink
from l0arm.planning import PlanError

DIMS = "#dims"
# By network: its groups of positions, and how they are executed.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], dict[str, str]]] = {
    "inferred": (attentions.Inferred, {"q": "4 patched", "v": "4 as is"}),
    "explicit": (attentions.Explicit, {"q": "4 patched", "v": "4 as is"}),
    "unscaled": (attentions.Unscaled, {"q": "4 as is", "v": "4 as is"}),
    "linear": (attentions.Linear, {"q": "4 as is", "v": "4 as is"}),
    "normed": (attentions.Normed, {"v": "4 as is"}),
    "learned": (attentions.Learned, {"q": "4 patched", "v": "4 as is"}),
    "sized": (attentions.Sized, {"q": "4 patched"}),
    "divided": (attentions.Divided, {"q": "4 patched"}),
    "one by one": (attentions.OneByOne, {"q": "4 patched"}),
    "sized and normed": (attentions.SizedAndNormed, {"v": "4 patched"}),
    "fused": (attentions.Fused, {"qkv": "4 patched"}),
    "decoder": (attentions.Decoder, {"qkv": "4 patched"}),
    "rotary": (Rotary, {"q": "2 patched"}),
    "rotary pairs": (lambda: Rotary(attentions.rotated_pairs), {"q": "2 patched"}),
    "convolved": (attentions.Convolved, {"q.0": "4 patched", "v.0": "4 patched"}),
    "of torch": (lambda: OfTorch(scores=False), {"attend": "4 replaced"}),
    "of torch, scores": (lambda: OfTorch(scores=True), {"attend": "4 replaced"}),
}


def made(name: str) -> tuple[nn.Module, tuple[Tensor]]:
    torch.manual_seed(0)
    model, (x,) = doubled(Net(NETWORKS[name][0]()), torch.randn(2, 4, 5))
    return model, (x,)


def dims(found: Plan) -> dict[str, str]:
    """The groups of positions and their execution."""
    prefix = "attention."
    return {
        name.removeprefix(prefix).removesuffix(DIMS): how
        for name, how in described(found).items()
        if name.endswith(DIMS)
    }


@pytest.mark.parametrize("name", NETWORKS)
def test_positions_are_cut_beside_heads(name: str) -> None:
    """check_cut: outputs and gradients in eval and train mode, under three masks, in float64."""
    model, inputs = made(name)
    found = plan(model, inputs, head_dims=True)
    assert dims(found) == NETWORKS[name][1]
    plain = plan(model, inputs)
    assert [e for e in found.planned if DIMS not in e.group.name] == list(plain.planned)
    check_cut(model, inputs, found)


@pytest.mark.parametrize("name", ["inferred", "divided", "fused", "rotary", "of torch"])
def test_positions_go_alone(name: str) -> None:
    """Not only with as many heads: what counts one would hide in the other."""
    model, inputs = made(name)
    found = plan(model, inputs, head_dims=True)
    gated = sparsify(copy.deepcopy(model), found, "l0-arm", lam=0.0).double()
    for seed in range(3):
        torch.manual_seed(seed)
        closed = [(torch.rand(g.units) < 0.5) & (DIMS in g.name) for g in found.groups]
        z = 1.0 - torch.cat(closed).double()
        close(gated, z)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # all positions may be closed
            small = compact(gated, example_inputs=inputs)
        want = with_zeros(model, found.groups, z).eval()(*inputs)
        torch.testing.assert_close(small.eval()(*inputs), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["sized", "decoder", "rotary", "of torch"])
def test_positions_heads_stream_and_depth_go_together(name: str) -> None:
    model, inputs = made(name)
    found = plan(model, inputs, head_dims=True, stream=True, depth=True)
    assert dims(found) == NETWORKS[name][1]
    assert any(group.norms for group in found.groups)
    assert found.groups[-1].name == "depth"
    check_cut(model, inputs, found)


@pytest.mark.parametrize("name", ["inferred", "fused", "rotary"])
def test_small_networks_are_saved_loaded_and_copied(name: str, tmp_path: Path) -> None:
    model, inputs = made(name)
    found = plan(model, inputs, head_dims=True)
    assert Plan.from_json(found.to_json()) == found
    original = copy.deepcopy(model)
    gated = sparsify(model, found, "l0-arm", lam=0.0, example_inputs=inputs).double()
    close(gated, torch.cat([torch.arange(group.units) > 0 for group in found.groups]).double())
    small = compact(gated).eval()
    save(small, tmp_path / "small")
    loaded = load(tmp_path / "small", lambda: copy.deepcopy(original))
    want = small(*inputs)
    for network in (loaded, copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        assert torch.equal(network.eval()(*inputs), want)
    torch.testing.assert_close(expand(small, gated).eval()(*inputs), want, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["inferred", "divided", "decoder", "rotary"])
def test_shrinking_twice_scales_by_the_full_width(name: str) -> None:
    """Positions go, then heads, then positions again."""
    model, inputs = made(name)
    found = plan(model, inputs, head_dims=True)
    gated = sparsify(copy.deepcopy(model), found, "l0-arm", lam=0.0).double()
    first = torch.cat([torch.arange(g.units) >= (DIMS in g.name) for g in found.groups]).double()
    close(gated, first)
    smaller = shrink(gated)
    last = torch.cat([torch.arange(g.units) != 1 for g in smaller.groups]).double()
    if name == "rotary":
        last = torch.ones(smaller.layout.gates)  # one pair is left
    close(smaller, last)
    whole = first.clone().double()
    whole[first > 0] = last.double()
    want = with_zeros(model, found.groups, whole).eval()(*inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for network in (smaller.compact(certify=False), shrink(smaller).compact(certify=False)):
            torch.testing.assert_close(network.eval()(*inputs), want, rtol=1e-12, atol=1e-12)


def test_gates_may_be_fractions_unless_one_matrix_makes_queries_and_keys() -> None:
    model, inputs = made("inferred")
    found = plan(model, inputs, head_dims=True)
    gated = sparsify(model, found, "l0-hc", lam=1e-3, example_inputs=inputs).double()
    gated.phi.data = torch.randn_like(gated.phi)
    gated.loss(lambda: gated(*inputs).square().mean()).total.backward()
    assert bool(gated.phi.grad is not None and gated.phi.grad.any())
    small = compact(gated)
    torch.testing.assert_close(small.eval()(*inputs), gated.eval()(*inputs), rtol=1e-12, atol=0)
    model, inputs = made("fused")
    found = plan(model, inputs, head_dims=True)
    with pytest.raises(ValueError, match=r"one matrix that makes both.*plan without head_dims"):
        sparsify(model, found, "l0-hc", lam=1e-3)


def test_the_reason_names_what_mixes_queries() -> None:
    model, inputs = made("normed")
    found = plan(model, inputs, head_dims=True)
    reasons = {entry.layer: entry.reason for entry in found.skipped}
    why = "its head dimensions stay: linalg_vector_norm in 'attention' mixes the units"
    assert reasons["attention.q"] == reasons["attention.k"] == why


class Mixed(attentions.Inferred):
    """Positions of the values meet each other: their number is fixed."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q @ k.mT).softmax(-1) @ v).softmax(-1)


class Counted(attentions.Inferred):
    """The number of positions reaches the outputs."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT * q.shape[-1]).softmax(-1) @ v


class SizedAndCounted(attentions.Sized):
    """One attribute is the width of all three, of which the values alone can be cut."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT * q.shape[-1]).softmax(-1) @ v


def test_values_go_alone_if_all_three_cannot_go_as_one() -> None:
    torch.manual_seed(0)
    model, inputs = doubled(Net(SizedAndCounted()), torch.randn(2, 4, 5))
    found = plan(model, inputs, head_dims=True)
    assert dims(found) == {"v": "4 patched"}
    assert [entry.layer for entry in found.skipped if "head dim" in entry.reason] == ["attention.q"]
    check_cut(model, inputs, found)


def test_what_the_values_refute_is_refused() -> None:
    torch.manual_seed(0)
    model, inputs = doubled(Net(Counted()), torch.randn(2, 4, 5))
    found = plan(model, inputs, head_dims=True)
    assert dims(found) == {"v": "4 as is"}
    (reason,) = [entry.reason for entry in found.skipped if entry.layer == "attention.q"]
    assert reason.startswith("its head dimensions stay: dropping its units gives other values")
    check_cut(model, inputs, found)


def test_values_that_mix_stay() -> None:
    torch.manual_seed(0)
    model, inputs = doubled(Net(Mixed()), torch.randn(2, 4, 5))
    found = plan(model, inputs, head_dims=True)
    assert dims(found) == {"q": "4 as is"}
    assert "softmax" in next(e.reason for e in found.skipped if e.layer == "attention.v")


def test_patterns_choose_positions_too() -> None:
    model, inputs = made("inferred")
    assert dims(plan(model, inputs, head_dims=True, include="attention.v")) == {"v": "4 as is"}
    assert dims(plan(model, inputs, head_dims=True, exclude="attention.k")) == {"v": "4 as is"}


def test_networks_without_attention_have_none() -> None:
    network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    assert plan(network, torch.rand(1, 4), head_dims=True) == plan(network, torch.rand(1, 4))
    with pytest.raises(PlanError, match="nothing of this model"):
        plan(nn.Sequential(nn.Linear(4, 2)), torch.rand(1, 4), head_dims=True)


class Single(nn.Module):
    """One head: its values are units of their own in any plan, queries and keys are not."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(5, n) for n in (4, 4, 6, 3))
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).mT / 2
        return self.out(scores.softmax(-1) @ self.v(x))


def test_one_head() -> None:
    torch.manual_seed(0)
    model, inputs = doubled(Single(), torch.randn(2, 4, 5))
    found = check_cut(model, inputs, plan(model, inputs, head_dims=True))
    assert described(found) == {"v": "6 as is", "q#dims": "4 as is"}


def test_a_forward_that_takes_another_way_is_refused() -> None:
    """The place of the product must be reached, or its scale would be another."""
    model, inputs = made("explicit")
    found = plan(model, inputs, head_dims=True)
    gated = sparsify(model, found, "l0-arm", lam=0.0, example_inputs=inputs).double()
    close(gated, torch.cat([torch.arange(g.units) > 0 for g in found.groups]).double())
    small = compact(gated)
    attention = small.get_submodule("attention")
    attention.attend = lambda q, k, v: v  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="was not reached"):
        small(*inputs)
