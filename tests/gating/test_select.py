"""Inputs gathered by blocks or index, and what `select` does not allow."""

import pytest
import torch
from torch import nn

from l0arm import Gated, Group, HardSigmoid, Patch, Slice, sparsify
from l0arm.models import MLP

READS = {
    "block": Slice("fc1.weight", 1, block=3),
    "index": Slice("fc1.weight", 1, index=((0, 5, 7), (1, 2, 11), (3, 4, 10), (6, 8, 9))),
}


def gate(*groups: Group, **options) -> Gated:
    return sparsify(MLP((12, 5, 2)), groups, lam=0.0, gate=HardSigmoid(), **options)


@pytest.mark.parametrize("z", [[1.0, 0, 0, 1], [0.5, 0, 0, 0.25]])
@pytest.mark.parametrize("read", READS)
def test_units_of_several_inputs_are_gathered(read, z):
    gated = gate(Group("in", 4, reads=(READS[read],), select=Slice("fc1", -1)))
    x, outputs = torch.rand(6, 12), []
    for gated.execution in ("sliced", "masked"):
        with gated.drawn(torch.tensor(z)):
            outputs.append(gated(x))
    assert torch.allclose(*outputs, atol=1e-6)
    gated.phi.data = torch.tensor([1.0, -1, -1, 1])
    assert torch.allclose(gated.compact()(x), gated.eval()(x), atol=1e-6)


def test_two_groups_cannot_select_one_input():
    group = Group("a", 4, reads=(READS["block"],), select=Slice("fc1", -1))
    other = Group("b", 12, reads=(Slice("fc1.weight", 1),), select=Slice("fc1", -1))
    with pytest.raises(ValueError, match=r"'b' selects the input of 'fc1', which another group"):
        gate(group, other)


@pytest.mark.parametrize(
    "group",
    [
        Group("g", 4, reads=(READS["block"],), select=Slice("fc1", None)),
        Group("g", 60, reads=(Slice("fc1.weight", None),), select=Slice("fc1", -1)),
    ],
)
def test_a_selection_needs_a_dimension_and_one_read_along_one(group):
    with pytest.raises(ValueError, match=r"group 'g' selects .* exactly one read along a dimen"):
        gate(group)


class Halves(nn.Module):
    """One producer, its units split between two readers."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(1, 4, 1)
        self.left, self.right = nn.Conv2d(2, 3, 1), nn.Conv2d(2, 3, 1)

    def forward(self, x):
        left, right = self.a(x).split((self.kept_left, 4 - self.kept_left), 1)
        return self.left(left) + self.right(right)

    kept_left = 2


def test_a_reader_all_of_whose_inputs_are_closed_keeps_a_stand_in():
    """Only positions of the weight are looked at: the reader's columns become one zero column."""
    reads = (
        Slice("left.weight", 1, index=((0,), (1,), (), ())),
        Slice("right.weight", 1, index=((), (), (0,), (1,))),
    )
    gated = sparsify(Halves(), [Group("g", 4, reads=reads)], lam=0.0)
    x, outputs = torch.rand(2, 1, 3, 3), []
    for gated.execution in ("sliced", "masked"):
        with gated.drawn(torch.tensor([1.0, 1, 0, 0])):
            outputs.append(gated(x))
    assert torch.allclose(*outputs, atol=1e-6)


def test_a_patch_on_a_class_attribute_is_refused():
    group = Group("g", 2, reads=(Slice("left.weight", 1),), patches=(Patch("", "kept_left"),))
    with pytest.raises(ValueError, match="which is not an integer attribute"):
        sparsify(Halves(), [group], lam=0.0)
