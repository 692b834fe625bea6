"""Groups against a model: what they refer to must exist, and |g| is counted once."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from l0arm import Group, Patch, Slice
from l0arm.gating.layout import Layout, resolve
from l0arm.models import MLP, LeNet5, WideResNet


def model() -> nn.Module:
    return nn.ModuleDict({"first": nn.Linear(4, 6), "second": nn.Linear(6, 3)})


def layout(**changes: object) -> Layout:
    parts = {"reads": (Slice("second.weight", 1),), "makes": (Slice("first.weight", 0),)}
    return resolve(model(), [Group("h", 6, **(parts | changes))])


@pytest.mark.parametrize("part", ["reads", "makes", "counts"])
def test_an_unknown_tensor_is_named_with_its_nearest(part: str) -> None:
    message = (
        "group 'h' names the tensor 'secnd.weight', which the model does not have; "
        r"nearest names: second\.weight"
    )
    with pytest.raises(ValueError, match=message):
        layout(**{part: (Slice("secnd.weight", 1),)})


def test_an_unknown_module_to_select_for_is_named_with_its_nearest() -> None:
    with pytest.raises(ValueError, match=r"names the module 'secnd', .*nearest names: second"):
        layout(select=Slice("secnd", -1))


def test_an_unknown_module_to_patch_is_named_with_its_nearest() -> None:
    with pytest.raises(ValueError, match=r"names the module 'secnd', .*nearest names: second"):
        layout(patches=(Patch("secnd", "heads"),))


@pytest.mark.parametrize("attribute", ["heads", "weight"])
def test_a_patch_needs_an_integer(attribute: str) -> None:
    with pytest.raises(ValueError, match=f"patches 'second.{attribute}', which is not an integer"):
        layout(patches=(Patch("second", attribute),))


@pytest.mark.parametrize("dim", [2, -3])
@pytest.mark.parametrize("part", ["reads", "makes", "counts"])
def test_a_dimension_must_exist(part: str, dim: int) -> None:
    message = rf"group 'h' cuts dim {dim} of 'second\.weight', .* 2 dimensions \(3, 6\); check"
    with pytest.raises(ValueError, match=message):
        layout(**{part: (Slice("second.weight", dim),)})


@pytest.mark.parametrize("part", ["reads", "makes", "counts"])
def test_a_dimension_must_have_the_size_of_the_group(part: str) -> None:
    with pytest.raises(ValueError, match=r"group 'h' has 6 units .*'second\.weight' has 3; check"):
        layout(**{part: (Slice("second.weight", 0),)})


def test_a_parametrized_weight_is_refused() -> None:
    plain = nn.Sequential(nn.Linear(3, 5), weight_norm(nn.Linear(5, 2)))
    group = Group("h", 5, reads=(Slice("1.parametrizations.weight.original1", 1),))
    message = "a parametrization computes the weight.* plain first with .*remove_parametrizations"
    with pytest.raises(ValueError, match=message):
        resolve(plain, [group])


def test_group_names_are_unique() -> None:
    group = Group("h", 6, reads=(Slice("second.weight", 1),))
    with pytest.raises(ValueError, match=r"unique, but \['h'\] stand more than once"):
        resolve(model(), [group, group])


def test_no_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="no groups: nothing would be gated; pass at least one"):
        resolve(model(), [])


# |g|, Eq. 17


@pytest.mark.parametrize(
    ("network", "sizes"),
    [
        (MLP(), [300] * 784 + [100] * 300 + [10] * 100),
        (LeNet5(), [25] * 20 + [500] * 50 + [500] * 800 + [10] * 500),
        (WideResNet(10, 1), [9 * 16] * 16 + [9 * 16] * 32 + [9 * 32] * 64),
    ],
)
def test_sizes_of_the_networks_of_the_paper(network: nn.Module, sizes: list[int]) -> None:
    assert resolve(network, network.groups()).sizes.tolist() == sizes


def sizes(units: int, *pieces: Slice) -> list[float]:
    return resolve(model(), [Group("h", units, reads=pieces, counts=pieces)]).sizes.tolist()


def test_the_size_of_a_block_is_that_of_all_its_positions() -> None:
    assert sizes(3, Slice("second.weight", 1, block=2)) == [6, 6, 6]


def test_the_size_of_listed_positions_is_their_number() -> None:
    assert sizes(3, Slice("second.weight", 1, index=((0, 3), (1,), ()))) == [6, 3, 0]


def test_the_sizes_of_several_tensors_add_up() -> None:
    assert sizes(6, Slice("second.weight", 1), Slice("first.weight", 0)) == [7] * 6


def test_a_gate_per_weight_answers_for_one() -> None:
    assert sizes(18, Slice("second.weight", None)) == [1] * 18


def test_a_tied_weight_counts_once() -> None:
    tied = model()
    tied["third"] = nn.Linear(6, 3)
    tied["third"].weight = tied["second"].weight
    pieces = (Slice("second.weight", 1), Slice("third.weight", 1))
    assert resolve(tied, [Group("h", 6, pieces, (), pieces)]).sizes.tolist() == [3] * 6


def test_gates_are_numbered_group_by_group() -> None:
    found = resolve(LeNet5(), LeNet5().groups())
    assert (found.offsets, found.gates) == ((0, 20, 70, 870), 1370)
    assert torch.bincount(found.group_of).tolist() == [20, 50, 800, 500]


def test_rows_are_cut_before_columns() -> None:
    cuts = resolve(MLP(), MLP().groups()).tensors  # the group that reads columns comes first
    assert list(cuts["fc1.weight"].axes) == list(cuts["fc2.weight"].axes) == [0, 1]
