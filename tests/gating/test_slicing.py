"""theta = theta~ z (Eq. 2) and back: cut to the open slices, or multiplied in place."""

import pytest
import torch
from torch import Tensor, nn

from l0arm import Group, Slice
from l0arm.gating.draw import Draw
from l0arm.gating.layout import Layout, resolve
from l0arm.gating.slicing import theta, write_back


@pytest.fixture
def layout() -> Layout:
    model = nn.ModuleDict({"norm": nn.BatchNorm1d(3), "reader": nn.Linear(3, 2)})
    makes = (Slice("norm.running_mean", 0), Slice("norm.weight", 0))
    return resolve(model, [Group("h", 3, (Slice("reader.weight", 1),), makes)])


def draw(layout: Layout, *z: float, sliced: bool = True) -> Draw:
    return Draw(layout, torch.tensor(z), sliced=sliced)


WEIGHT = torch.tensor([[1.0, 2, 3], [4, 5, 6]])


def cut(layout: Layout, z: Draw) -> list[list[float]]:
    return theta(WEIGHT, layout.tensors["reader.weight"], z).tolist()


def test_closed_columns_are_dropped(layout: Layout) -> None:
    assert cut(layout, draw(layout, 1, 0, 1)) == [[1, 3], [4, 6]]


def test_closed_columns_are_zeroed_in_masked_execution(layout: Layout) -> None:
    assert cut(layout, draw(layout, 1, 0, 1, sliced=False)) == [[1, 0, 3], [4, 0, 6]]


def test_fractions_scale_the_columns_that_stay(layout: Layout) -> None:
    assert cut(layout, draw(layout, 0.5, 0, 1)) == [[0.5, 3], [2, 6]]


def test_a_stand_in_is_zero(layout: Layout) -> None:
    assert cut(layout, draw(layout, 0, 0, 0)) == [[0], [0]]


def test_all_open_is_the_tensor_itself(layout: Layout) -> None:
    z = draw(layout, 1, 1, 1)
    assert theta(WEIGHT, layout.tensors["reader.weight"], z) is WEIGHT


def written(layout: Layout, z: Draw, updated: Tensor) -> list[float]:
    original = torch.zeros(3)
    write_back(original, updated, layout.tensors["norm.running_mean"], z)
    return original.tolist()


def test_open_rows_are_written_back(layout: Layout) -> None:
    assert written(layout, draw(layout, 1, 0, 1), torch.tensor([7.0, 9])) == [7, 0, 9]


def test_closed_rows_are_not_written_in_masked_execution(layout: Layout) -> None:
    z = draw(layout, 1, 0, 1, sliced=False)
    assert written(layout, z, torch.tensor([7.0, 8, 9])) == [7, 0, 9]


def test_a_stand_in_is_not_written(layout: Layout) -> None:
    assert written(layout, draw(layout, 0, 0, 0), torch.tensor([7.0])) == [0, 0, 0]


def test_all_rows_are_written_when_all_are_open(layout: Layout) -> None:
    assert written(layout, draw(layout, 1, 1, 1), torch.tensor([7.0, 8, 9])) == [7, 8, 9]
