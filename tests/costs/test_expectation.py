"""The expected open share of a tensor equals its average over all draws, enumerated."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from l0arm.costs.expectation import expected_share
from l0arm.gating import Group, Slice
from l0arm.gating.layout import Layout, resolve


def enumerated(layout: Layout, name: str, shape: torch.Size, pi: Tensor) -> Tensor:
    """sum over all 2^V draws of P(z) times the share of entries all of whose gates are open."""
    spec = layout.tensors[name]
    bits = torch.tensor(list(product((0.0, 1.0), repeat=layout.gates)), dtype=pi.dtype)
    z = torch.cat([bits, bits.new_ones(len(bits), 1)], 1)  # a row for each draw
    mask = bits.new_ones(len(bits), *shape)
    for dim, axis in spec.axes.items():
        along = [len(bits)] + [1] * len(shape)
        along[1 + dim] = -1
        for reach in (r for r in axis.reaches if layout.groups[r.group].drops):
            mask = mask * z[:, reach.gate_of].view(along)
    for group in spec.elementwise:
        mask = mask * bits[:, layout.span(group)].view(-1, *shape)
    chance = torch.where(bits == 1, pi, 1 - pi).prod(1)
    return (chance * mask.flatten(1).mean(1)).sum()


def network(*groups: Group) -> Layout:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 6), nn.Linear(6, 4))
    return resolve(model, groups)


def hidden(name: str = "a") -> Group:
    return Group(name, 4, reads=(Slice("1.weight", 1),), makes=(Slice("0.weight", 0),))


def outer() -> Group:
    pairs = Slice("1.weight", 0, block=2)
    return Group("b", 3, reads=(Slice("2.weight", 1, block=2),), makes=(pairs,))


def on_both_sides() -> Group:
    """The units of the second layer's input are also those of its output's first four rows."""
    rows = Slice("1.weight", 0, index=((0,), (1, 4), (2,), (3,)))
    return Group("c", 4, reads=(Slice("1.weight", 1),), makes=(rows, Slice("0.weight", 0)))


def zeroed() -> Group:
    """Nothing makes its units: closed, they are multiplied by zero and still computed."""
    return Group("e", 4, reads=(Slice("1.weight", 1),))


def single() -> Group:
    return Group("d", 12, reads=(Slice("0.weight", None),))


@pytest.mark.parametrize(
    ("groups", "name"),
    [
        ((hidden(),), "0.weight"),
        ((hidden(), outer()), "1.weight"),
        ((on_both_sides(),), "1.weight"),
        ((on_both_sides(), outer()), "1.weight"),
        ((single(),), "0.weight"),
        ((hidden(), single()), "0.weight"),
        ((zeroed(), outer()), "1.weight"),
    ],
)
def test_the_share_and_its_gradient_are_those_of_the_enumeration(
    groups: tuple[Group, ...], name: str
) -> None:
    layout = network(*groups)
    shape = torch.Size({"0.weight": (4, 3), "1.weight": (6, 4)}[name])
    generator = torch.Generator().manual_seed(0)
    pi = torch.rand(layout.gates, generator=generator, dtype=torch.float64, requires_grad=True)
    share = expected_share(layout, layout.tensors[name], shape, pi)
    truth = enumerated(layout, name, shape, pi)
    assert float((share - truth).detach().abs()) < 1e-12
    ours, true = torch.autograd.grad(share, pi)[0], torch.autograd.grad(truth, pi)[0]
    assert float((ours - true).abs().max()) < 1e-12


def test_units_that_are_only_zeroed_are_still_there() -> None:
    layout = network(zeroed())
    pi = torch.full((4,), 0.25, dtype=torch.float64)
    assert float(expected_share(layout, layout.tensors["1.weight"], torch.Size((6, 4)), pi)) == 1.0


def test_a_gate_that_reaches_a_position_twice_counts_once() -> None:
    """An embedding tied with the output layer: its columns are made and read by the same units."""
    columns = Slice("1.weight", 1)
    tied = Group("t", 4, reads=(columns,), makes=(columns, Slice("0.weight", 0)))
    layout = network(tied)
    pi = torch.tensor([0.1, 0.5, 0.7, 0.9], dtype=torch.float64)
    shape = torch.Size((6, 4))
    found = expected_share(layout, layout.tensors["1.weight"], shape, pi)
    torch.testing.assert_close(found, pi.mean())
    torch.testing.assert_close(found, enumerated(layout, "1.weight", shape, pi))
