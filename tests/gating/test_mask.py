"""Which units stay: rounded widths, re-opened gates, and no dead structure."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import l0arm
from l0arm import EmptyGroupWarning, Gated, Group, Slice, sparsify
from l0arm.gating.layout import resolve
from l0arm.gating.mask import close_dead_units
from l0arm.methods import METHODS
from l0arm.models import MLP


def lenet_gates() -> Tensor:
    return torch.ones(1370)


def living(net: Any, z: Tensor) -> dict[str, Tensor]:
    gated = net.gated()
    return gated.per_group(close_dead_units(gated.layout, z.double()))


def test_a_filter_whose_flat_inputs_are_all_closed_goes(network: Any) -> None:
    z = lenet_gates()
    z[70 + 16 * 3 : 70 + 16 * 4] = 0
    alive = living(network("lenet5"), z)["conv2"]
    assert (alive == 0).nonzero().flatten().tolist() == [3]


def test_the_flat_inputs_of_a_closed_filter_go(network: Any) -> None:
    z = lenet_gates()
    z[20 + 3] = 0
    alive = living(network("lenet5"), z)["fc1"]
    assert (alive == 0).nonzero().flatten().tolist() == list(range(48, 64))


def test_one_open_flat_input_keeps_its_filter(network: Any) -> None:
    z = lenet_gates()
    z[70 + 16 * 3 : 70 + 16 * 4 - 1] = 0
    assert living(network("lenet5"), z)["conv2"].all()


def test_a_dead_layer_takes_all_before_it_along(network: Any) -> None:
    z = lenet_gates()
    z[870:] = 0
    parts = living(network("lenet5"), z)
    assert not any(part.any() for part in parts.values())


def test_an_empty_layer_takes_nothing_after_it_along(network: Any) -> None:
    z = lenet_gates()
    z[:20] = 0
    parts = living(network("lenet5"), z)
    assert [name for name, part in parts.items() if part.all()] == ["conv2", "fc1", "fc2"]


def test_fractions_that_live_stay_as_they_are(network: Any) -> None:
    net = network("lenet5")
    z = net.gates(0, fractional=True)
    layout = net.gated().layout
    alive = close_dead_units(layout, z)
    assert torch.equal(alive[alive != 0], z[alive != 0])
    assert torch.equal(close_dead_units(layout, alive), alive)


def test_a_residual_block_without_filters_leaves_the_others(network: Any) -> None:
    net = network("wrn")
    z = net.gates(0, empty=["blocks.1.conv1"])
    assert torch.equal(close_dead_units(net.gated().layout, z), z)


def test_a_unit_read_elsewhere_lives() -> None:
    names = ("a", "b", "c", "d")
    model = nn.ModuleDict({name: nn.Linear(2, 2) for name in names})
    both = Group("h", 2, reads=(Slice("b.weight", 1), Slice("c.weight", 1)))
    behind_b = Group("k", 2, reads=(Slice("d.weight", 1),), makes=(Slice("b.weight", 0),))
    layout = resolve(model, [both, behind_b])
    z = torch.tensor([1.0, 1, 0, 0])  # b has no open row, but c reads h too
    assert torch.equal(close_dead_units(layout, z), z)


def test_gates_on_single_weights_do_not_die() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    weights = Group("w", 4, reads=(Slice("1.weight", None),))
    z = torch.tensor([1.0, 0, 0, 0])
    assert torch.equal(close_dead_units(resolve(model, [weights]), z), z)


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


# Widths and floors


@pytest.fixture
def gated() -> Gated:
    torch.manual_seed(0)
    gated = sparsify(MLP((12, 10, 9, 3)), method="l0-arm", lam=0.0)
    gated.phi.data = torch.randn(gated.phi.shape)
    return gated.eval()


def widths(gated: Gated) -> list[int]:
    return [int(n) for n in l0arm.architecture(gated).split("-")]


def test_widths_are_multiples_or_all_there_is(gated: Gated) -> None:
    before = widths(gated)
    gated.width_multiple = 4
    units = [12, 10, 9]
    assert widths(gated) == [min(-(-n // 4) * 4, u) for n, u in zip(before, units, strict=True)]
    assert widths(gated) != before


def test_the_most_probable_closed_gates_open_at_their_probability(gated: Gated) -> None:
    old = gated.deterministic()
    gated.width_multiple = 4
    new, pi = gated.deterministic(), gated.gates.open_probability.detach()
    assert torch.equal(new[old != 0], old[old != 0])
    changed = (old == 0) & (new != 0)
    assert torch.equal(new[changed], pi[changed])
    for name, part in gated.per_group(changed).items():
        still = gated.per_group(new)[name] == 0
        if part.any() and still.any():
            assert gated.per_group(pi)[name][part].min() >= gated.per_group(pi)[name][still].max()


def test_compaction_follows(gated: Gated) -> None:
    gated.width_multiple = 4
    x = torch.rand(5, 12, dtype=torch.float64)
    gated = gated.double()
    small = gated.compact()
    assert small.fc2.weight.shape == (widths(gated)[2], widths(gated)[1])  # type: ignore[union-attr]
    assert float((small(x) - gated(x)).detach().abs().max()) < 1e-12


def test_a_closed_group_stays_closed(gated: Gated) -> None:
    gated.phi.data[12:22] = -9.0
    gated.width_multiple = 4
    assert widths(gated)[1] == 0


@pytest.mark.parametrize("multiple", [0, -8, 2.5])
def test_only_a_positive_integer_will_do(gated: Gated, multiple: int) -> None:
    with pytest.raises(ValueError, match="width_multiple must be an integer >= 1"):
        gated.width_multiple = multiple


@pytest.mark.parametrize("name", METHODS)
def test_every_method_compacts_at_a_rounded_width(name: str) -> None:
    torch.manual_seed(0)
    options = {} if name in ("magnitude", "l1-filter", "random") else {"lam": 1e-4}
    gated = sparsify(MLP((12, 10, 9, 3)), method=name, **options).double().eval()
    gated.phi.data = gated.phi.data + torch.randn(gated.phi.shape) if gated.phi.numel() else 0
    gated.width_multiple = 4
    x = torch.rand(5, 12, dtype=torch.float64)
    assert float((gated.compact()(x) - gated(x)).detach().abs().max()) < 1e-10


@pytest.mark.parametrize("floor", [0, 4])
def test_reopened_gates_of_bayesian_methods_are_the_likeliest_and_have_their_value(
    floor: int,
) -> None:
    model = MLP((6, 8, 3))
    inputs, hidden = model.groups()
    gated = sparsify(model, [inputs, replace(hidden, floor=floor)], method="bc-gnj", lam=0.0)
    gated.phi.data[:, 0] = 0.75  # mu
    gated.phi.data[:, 1] = -9.0
    gated.phi.data[6:, 1] = torch.tensor([1.0, 0.0, -1.0, -3.4, -3.3, -2.0, -3.2, -9.0])
    z = gated.deterministic(1 if floor else 4)[6:]
    assert z.tolist() == [0.0, 0.0, 0.0, 0.75, 0.75, 0.0, 0.75, 0.75]


def test_reopened_gates_of_sbp_are_the_likeliest() -> None:
    gated = sparsify(MLP((6, 8, 3)), method="sbp", lam=0.0)
    gated.phi.data[6:, 1] = torch.tensor([1.0, 4.0, 3.5, 1.5, 3.0, 2.5, 2.0, -5.0])
    z = gated.deterministic(4)[6:]
    assert z.nonzero().flatten().tolist() == [0, 3, 6, 7]
    assert float(z[0]) > float(z[3]) > float(z[6]) > 0.1
