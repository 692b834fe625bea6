"""A network that must not be larger than so many parameters."""

from dataclasses import replace

import pytest
import torch

from l0arm import Gated, Group, Slice, shrink, sparsify
from l0arm.methods._l0_best import Decide, l0_best, trimmed
from l0arm.models import MLP, LeNet5


def all_open(model: torch.nn.Module) -> Gated:
    torch.manual_seed(0)
    gated = sparsify(model, method=l0_best(0.0))
    torch.nn.init.uniform_(gated.phi, 0.5, 1.0)
    return gated


def left(gated: Gated) -> int:
    return sum(p.numel() for p in gated.compact().parameters())


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
def test_no_more_is_left_than_allowed(share: float) -> None:
    gated = all_open(LeNet5())
    dense = left(gated)
    Decide(share)(gated, None)
    assert 0.9 * share * dense < left(gated) <= share * dense


def test_the_least_certain_units_go_and_one_less_would_be_too_few() -> None:
    gated = all_open(MLP((12, 9, 7, 5)))
    before, z = left(gated), gated.deterministic()
    kept = trimmed(gated, z, 0.4) > 0
    phi = gated.phi.detach().clone()
    assert phi[~kept].max() < phi[kept].min()  # an MLP's units all have a path to the output
    Decide(0.4)(gated, None)
    assert left(gated) <= 0.4 * before
    gated.phi.data[torch.where(kept, -1.0, phi).argmax()] = 100.0  # the last that was closed
    assert left(gated) > 0.4 * before


def test_what_is_small_enough_stays_as_it_is() -> None:
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
def test_a_share_of_the_parameters_is_asked_for(share: object) -> None:
    with pytest.raises(ValueError, match=r"at_most is a share of the parameters"):
        l0_best(0.0, at_most=share)  # type: ignore[arg-type]


def test_without_settling_there_is_no_point_at_which_to_trim() -> None:
    with pytest.raises(ValueError, match=r"at_most=0.1 .* settle=0 .* leave at_most out"):
        l0_best(0.0, at_most=0.1, settle=0)


def test_units_that_save_nothing_stay() -> None:
    """Inputs that are only zeroed: the model cannot stop computing them."""
    model = MLP((20, 16, 3))
    masked = Group("inputs", 20, reads=(Slice("fc1.weight", 1),), initial=0.8)
    gated = sparsify(model, [masked, model.groups()[1]], method=l0_best(0.0, at_most=0.6))
    gated.phi.data = torch.cat([torch.linspace(0.1, 0.2, 20), torch.linspace(0.3, 0.6, 16)])
    z = trimmed(gated, gated.deterministic(), 0.6) > 0
    assert [int(part.sum()) for part in z.split([20, 16])] == [20, 9]


@pytest.mark.parametrize(("model", "share"), [(MLP((12, 9, 7, 5)), 0.01), (LeNet5(), 1e-5)])
def test_a_size_that_cannot_be_reached_is_told_at_the_start(model: MLP, share: float) -> None:
    with pytest.raises(ValueError, match=f"at_most={share:g} cannot be reached: with as few units"):
        sparsify(model, method=l0_best(0.0, at_most=share))


def test_a_size_is_a_share_of_the_whole_network() -> None:
    method = l0_best(0.0, price="fixed", average=False, at_most=0.5)
    gated = sparsify(MLP((12, 9, 7, 5)), method=method)
    gated.phi.data[12:15] = -100.0
    with pytest.raises(ValueError, match="parameter_count belong to the network at its full size"):
        shrink(gated)


def test_the_cheapest_units_are_those_that_must_stay() -> None:
    """A unit of ten positions and one of one: at least the small one stays."""
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
