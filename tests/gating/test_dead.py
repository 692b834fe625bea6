"""Dead structure is followed both ways, and nothing that reaches the output is lost."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from l0arm import EmptyGroupWarning, Group, Slice
from l0arm.gating.dead import follow_dead
from l0arm.gating.layout import resolve


def lenet_gates() -> Tensor:
    return torch.ones(1370)


def followed(net: Any, z: Tensor) -> dict[str, Tensor]:
    gated = net.gated()
    return gated.per_group(follow_dead(gated.layout, z.double()))


def test_a_filter_whose_flat_inputs_are_all_closed_goes(network: Any) -> None:
    z = lenet_gates()
    z[70 + 16 * 3 : 70 + 16 * 4] = 0
    alive = followed(network("lenet5"), z)["conv2"]
    assert (alive == 0).nonzero().flatten().tolist() == [3]


def test_the_flat_inputs_of_a_closed_filter_go(network: Any) -> None:
    z = lenet_gates()
    z[20 + 3] = 0
    alive = followed(network("lenet5"), z)["fc1"]
    assert (alive == 0).nonzero().flatten().tolist() == list(range(48, 64))


def test_one_open_flat_input_keeps_its_filter(network: Any) -> None:
    z = lenet_gates()
    z[70 + 16 * 3 : 70 + 16 * 4 - 1] = 0
    assert followed(network("lenet5"), z)["conv2"].all()


def test_a_dead_layer_takes_all_before_it_along(network: Any) -> None:
    z = lenet_gates()
    z[870:] = 0
    parts = followed(network("lenet5"), z)
    assert not any(part.any() for part in parts.values())


def test_an_empty_layer_takes_nothing_after_it_along(network: Any) -> None:
    z = lenet_gates()
    z[:20] = 0
    parts = followed(network("lenet5"), z)
    assert [name for name, part in parts.items() if part.all()] == ["conv2", "fc1", "fc2"]


def test_fractions_that_live_stay_as_they_are(network: Any) -> None:
    net = network("lenet5")
    z = net.gates(0, fractional=True)
    layout = net.gated().layout
    alive = follow_dead(layout, z)
    assert torch.equal(alive[alive != 0], z[alive != 0])
    assert torch.equal(follow_dead(layout, alive), alive)


def test_a_residual_block_without_filters_leaves_the_others(network: Any) -> None:
    net = network("wrn")
    z = net.gates(0, empty=["blocks.1.conv1"])
    assert torch.equal(follow_dead(net.gated().layout, z), z)


def test_a_unit_read_elsewhere_lives() -> None:
    names = ("a", "b", "c", "d")
    model = nn.ModuleDict({name: nn.Linear(2, 2) for name in names})
    both = Group("h", 2, reads=(Slice("b.weight", 1), Slice("c.weight", 1)))
    behind_b = Group("k", 2, reads=(Slice("d.weight", 1),), makes=(Slice("b.weight", 0),))
    layout = resolve(model, [both, behind_b])
    z = torch.tensor([1.0, 1, 0, 0])  # b has no open row, but c reads h too
    assert torch.equal(follow_dead(layout, z), z)


def test_gates_on_single_weights_do_not_die() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    weights = Group("w", 4, reads=(Slice("1.weight", None),))
    z = torch.tensor([1.0, 0, 0, 0])
    assert torch.equal(follow_dead(resolve(model, [weights]), z), z)


@pytest.mark.parametrize("seed", range(5))
def test_a_network_with_dead_structure_still_equals_the_oracle(seed: int, network: Any) -> None:
    net = network("lenet5")
    z = net.gates(seed, fractional=True)
    z[70:870] *= (torch.rand(50) > 0.8).repeat_interleave(16)  # most filters are read by nobody
    small = net.gated(z=z).eval().compact()
    assert small.conv2.out_channels < int((z[20:70] != 0).sum())
    assert_close(small(net.x), net.oracle(z)(net.x), rtol=1e-10, atol=1e-10)


def test_a_network_dead_throughout_answers_with_its_last_bias(network: Any) -> None:
    net = network("lenet5")
    z = net.gates(0, empty=["fc2"])
    with pytest.warns(EmptyGroupWarning):
        small = net.gated(z=z).eval().compact()
    assert_close(small(net.x), net.plain.fc2.bias.expand(len(net.x), 10))
    assert sum(p.numel() for p in small.parameters()) < 100
