"""l0-best: its stages and options, gates fixed to open or closed, and trimming to a size."""

from dataclasses import replace

import pytest
import torch

from l0arm import Gated, Group, Slice, architecture, prune_rate, shrink, sparsify
from l0arm.costs.expectation import parameter_cost
from l0arm.estimators import ARM
from l0arm.gating.mask import close_dead_units
from l0arm.methods._l0_best import Decide, l0_best, trimmed
from l0arm.models import MLP, LeNet5
from l0arm.penalties import L0


def test_gates_are_fixed_by_the_threshold() -> None:
    gated = sparsify(LeNet5(), method="l0-best", lam=0.0)
    torch.nn.init.uniform_(gated.phi, -0.3, 0.3)
    was_open = gated.deterministic() > 0
    Decide()(gated, None)
    pi = gated.gates.open_probability.detach()
    assert set(pi.tolist()) == {0.0, 1.0}
    assert not ((pi == 1) & ~was_open).any()
    both = [gated.method.gate(gated.phi).sample() for _ in range(5)]
    assert all(torch.equal(z, pi) for z in both)  # every draw is the network that is kept


def test_units_behind_closed_filters_are_closed() -> None:
    """3 filters of conv2 are left: 48 of the 800 inputs of fc1 can be read."""
    gated = sparsify(LeNet5(), method="l0-best", lam=0.0)
    gated.phi.data.fill_(5.0)
    gated.phi.data[20 + 3 : 20 + 50] = -5.0
    assert architecture(gated) == "20-3-800-500"
    before = prune_rate(gated, "realised")
    Decide()(gated, None)
    assert architecture(gated) == "20-3-48-500"
    assert prune_rate(gated, "realised") == before
    assert prune_rate(gated) == pytest.approx(before, abs=0.1)


def test_in_the_settle_stage_only_the_weights_are_trained() -> None:
    learn, settle, end = l0_best(1e-6, settle=0.2, warm_up=0.75, settle_lr=3.0).stages
    assert [learn.share, settle.share, end.share] == pytest.approx([0.8, 0.198, 0.002])
    assert (learn.lr, settle.lr, end.lr) == (1.0, 3.0, 0.0)
    assert (learn.gate_lr, settle.gate_lr, end.gate_lr) == (1.0, 0.0, 0.0)
    assert [learn.penalty(p) for p in (0.0, 0.375, 0.75, 1.0)] == [0.0, 0.5, 1.0, 1.0]
    assert [settle.penalty(p) for p in (0.0, 1.0)] == [0.0, 0.0]
    assert [settle.anneal(p) for p in (0.0, 1.0)] == [1.0, 1.0]


def test_without_the_mean_the_learning_rate_decays() -> None:
    method = l0_best(1e-6, average=False)
    _, settle = method.stages
    assert [settle.anneal(p) for p in (0.0, 1.0)] == [1.0, 0.0]
    assert set(sparsify(LeNet5(), method=method).extras) == {"parameter_count"}


def test_every_part_can_be_switched_off() -> None:
    bare = l0_best(1e-6, estimator="arm", price="fixed", warm_up=0, settle=0)
    assert isinstance(bare.estimator, ARM)
    assert bare.penalties == (L0(1e-6),)
    assert [stage.name for stage in bare.stages] == ["learn"]
    assert bare.stages[0].penalty(0.0) == 1.0
    assert not sparsify(LeNet5(), method=bare).extras


def test_an_unknown_price_is_refused() -> None:
    with pytest.raises(ValueError, match="price must be 'left' or 'fixed'; got 'cheap'"):
        l0_best(0.0, price="cheap")  # type: ignore[arg-type]


def gumbel(phi: torch.Tensor) -> torch.Tensor:
    """At phi = -100 it is 0, and its slope 0 times infinity."""
    return torch.exp(-torch.exp(-phi))


def test_gates_of_another_function_are_fixed_with_finite_slopes() -> None:
    gated = sparsify(MLP((6, 5, 3)), method=l0_best(1e-3, gate=gumbel))
    gated.phi.data[:3] = -2.0
    Decide()(gated, None)
    assert gated.gates.probs.tolist()[:3] == [0.0] * 3
    assert set(gated.gates.probs.tolist()) == {0.0, 1.0}
    gated.loss(lambda: gated(torch.rand(4, 6)).square().mean()).backward()
    assert gated.phi.grad is not None
    assert gated.phi.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_fixed_gates_are_exactly_0_and_1(dtype: torch.dtype) -> None:
    gated = sparsify(MLP((6, 5, 3)), method=l0_best(0.0)).to(dtype)
    Decide()(gated, None)
    assert set(gated.gates.probs.tolist()) <= {0.0, 1.0}


def test_gate_functions_that_never_saturate_are_refused_at_the_start() -> None:
    def cauchy(phi: torch.Tensor) -> torch.Tensor:
        return torch.atan(phi) / torch.pi + 0.5

    with pytest.raises(ValueError, match=r"never exactly 0 and 1 .* or give settle=0"):
        sparsify(MLP((6, 5, 3)), method=l0_best(0.0, gate=cauchy))
    assert sparsify(MLP((6, 5, 3)), method=l0_best(0.0, gate=cauchy, settle=0)).training


def test_gates_of_single_weights_have_no_price_in_parameters() -> None:
    weights = [Group("w", 30, reads=(Slice("fc1.weight", None),))]
    with pytest.raises(ValueError, match="no gate of this model takes a parameter off it"):
        sparsify(MLP((6, 5, 3)), weights, method=l0_best(1e-3))
    gated = sparsify(MLP((6, 5, 3)), weights, method=l0_best(1e-3, price="fixed"))
    assert gated.penalty().item() > 0
    with pytest.raises(ValueError, match=r"40 % of the parameters cannot be reached: .* 100 % rem"):
        sparsify(MLP((6, 5, 3)), weights, budget="40%")


# Trimming: at most a given share of the parameters is left.


def all_open(model: torch.nn.Module) -> Gated:
    torch.manual_seed(0)
    gated = sparsify(model, method=l0_best(0.0))
    torch.nn.init.uniform_(gated.phi, 0.5, 1.0)
    return gated


def left(gated: Gated) -> int:
    return sum(p.numel() for p in gated.compact().parameters())


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
def test_at_most_the_given_share_is_left(share: float) -> None:
    gated = all_open(LeNet5())
    dense = left(gated)
    Decide(share)(gated, None)
    assert 0.9 * share * dense < left(gated) <= share * dense


def test_units_with_the_lowest_phi_are_closed_and_no_more_than_needed() -> None:
    gated = all_open(MLP((12, 9, 7, 5)))
    before, z = left(gated), gated.deterministic()
    kept = trimmed(gated, z, 0.4) > 0
    phi = gated.phi.detach().clone()
    assert phi[~kept].max() < phi[kept].min()  # an MLP's units all have a path to the output
    Decide(0.4)(gated, None)
    assert left(gated) <= 0.4 * before
    gated.phi.data[torch.where(kept, -1.0, phi).argmax()] = 100.0  # the last that was closed
    assert left(gated) > 0.4 * before


@pytest.mark.parametrize("seed", range(3))
def test_what_is_closed_last_leaves_no_room_unused(seed: int) -> None:
    """A filter takes hundreds of parameters along. No closed unit with a path would still fit."""
    torch.manual_seed(seed)
    gated = sparsify(LeNet5(), method=l0_best(0.0))
    torch.nn.init.normal_(gated.phi, -0.1, 0.1)
    cost, z = parameter_cost(gated), close_dead_units(gated.layout, gated.deterministic())
    kept = trimmed(gated, z, 0.005)
    assert float(cost((kept > 0).double())) <= 0.005 * cost.dense
    for unit in ((z > 0) & (kept == 0)).nonzero()[:, 0].tolist():
        again = kept.clone()
        again[unit] = z[unit]
        again = close_dead_units(gated.layout, again)
        assert again[unit] == 0 or float(cost((again > 0).double())) > 0.005 * cost.dense


def test_a_network_that_is_small_enough_is_not_trimmed() -> None:
    gated = all_open(MLP((12, 9, 7, 5)))
    z = gated.deterministic()
    assert torch.equal(trimmed(gated, z, 1.0), z)


def test_floors_are_kept_even_where_the_network_stays_too_large() -> None:
    torch.manual_seed(0)
    groups = [replace(group, floor=4) for group in MLP((12, 9, 7, 5)).groups()]
    gated = sparsify(MLP((12, 9, 7, 5)), method=l0_best(0.0), groups=groups)
    Decide(0.001)(gated, None)
    assert [int(part.sum()) for part in gated.gates.open_probability.split([12, 9, 7])] == [4] * 3


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, "0.5"])
def test_at_most_is_a_share_of_the_parameters(share: object) -> None:
    with pytest.raises(ValueError, match=r"at_most is a share of the parameters"):
        l0_best(0.0, at_most=share)  # type: ignore[arg-type]


def test_at_most_needs_the_settle_stage() -> None:
    with pytest.raises(ValueError, match=r"at_most=0.1 .* settle=0 .* leave at_most out"):
        l0_best(0.0, at_most=0.1, settle=0)


def test_units_that_save_nothing_are_kept() -> None:
    """Inputs that are only zeroed: the model cannot stop computing them."""
    model = MLP((20, 16, 3))
    masked = Group("inputs", 20, reads=(Slice("fc1.weight", 1),), initial=0.8)
    gated = sparsify(model, [masked, model.groups()[1]], method=l0_best(0.0, at_most=0.6))
    gated.phi.data = torch.cat([torch.linspace(0.1, 0.2, 20), torch.linspace(0.3, 0.6, 16)])
    z = trimmed(gated, gated.deterministic(), 0.6) > 0
    assert [int(part.sum()) for part in z.split([20, 16])] == [20, 9]


@pytest.mark.parametrize(("model", "share"), [(MLP((12, 9, 7, 5)), 0.01), (LeNet5(), 1e-5)])
def test_a_size_that_cannot_be_reached_is_refused_at_the_start(model: MLP, share: float) -> None:
    with pytest.raises(ValueError, match=f"at_most={share:g} cannot be reached: with as few units"):
        sparsify(model, method=l0_best(0.0, at_most=share))


def test_with_at_most_the_network_cannot_shrink_in_training() -> None:
    method = l0_best(0.0, price="fixed", average=False, at_most=0.5)
    gated = sparsify(MLP((12, 9, 7, 5)), method=method)
    gated.phi.data[12:15] = -100.0
    with pytest.raises(ValueError, match="parameter_count belong to the network at its full size"):
        shrink(gated)


def test_the_smallest_possible_network_keeps_the_cheapest_units() -> None:
    """A unit of ten positions and a unit of one: at least the small one is kept."""
    index = (tuple(range(10)), (10,))
    model = MLP((4, 11, 3))
    group = Group(
        "uneven",
        2,
        reads=(Slice("fc2.weight", 1, index=index),),
        makes=(Slice("fc1.weight", 0, index=index), Slice("fc1.bias", 0, index=index)),
    )
    gated = sparsify(model, [group], method=l0_best(0.0, at_most=0.2))
    gated.phi.data = torch.tensor([0.1, 1.0])
    Decide(0.2)(gated, None)
    assert left(gated) == 4 + 1 + 3 + 3  # one hidden unit, and three biases at the output
