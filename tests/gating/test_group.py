"""Groups and slices: positions, and errors that name the group, the tensor and the way out."""

import pytest
from torch import nn

from l0arm.gating import Group, Slice
from l0arm.gating.layout import Layout, resolve

READS = (Slice("1.weight", 1),)


def gate(read: Slice, units: int = 2, **options: object) -> Layout:
    """One group, resolved on a model whose 1.weight is 3 x 4."""
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3))
    return resolve(model, [Group("g", units, (read,), **options)])


def test_a_unit_owns_one_position() -> None:
    assert Slice("w", 0).positions(units=3, size=3) == ((0,), (1,), (2,))


def test_a_unit_owns_a_block() -> None:
    assert Slice("w", 0, block=3).positions(units=2, size=6) == ((0, 1, 2), (3, 4, 5))


def test_a_unit_owns_the_positions_listed() -> None:
    index = ((5, 0), (), (2,))
    assert Slice("w", 0, index=index).positions(units=3, size=6) == index


@pytest.mark.parametrize("dim", [1, -1])
def test_a_dimension_may_be_counted_from_the_end(dim: int) -> None:
    assert list(gate(Slice("1.weight", dim), units=4).tensors["1.weight"].axes) == [1]


@pytest.mark.parametrize("units", [0, -2])
def test_a_group_needs_a_unit(units: int) -> None:
    with pytest.raises(ValueError, match=f"group 'g' has {units} units; a group needs at least 1"):
        Group("g", units, READS)


def test_a_group_needs_a_reader() -> None:
    with pytest.raises(ValueError, match=r"group 'g' has no reads.* reads=\(Slice\("):
        Group("g", 2, reads=())


@pytest.mark.parametrize("initial", [0.0, 1.0, -0.1, 1.1, float("nan")])
def test_a_group_starts_strictly_between_0_and_1(initial: float) -> None:
    message = f"group 'g' starts at keep probability {initial!r}.* strictly between 0 and 1; use"
    with pytest.raises(ValueError, match=message):
        Group("g", 2, READS, initial=initial)


@pytest.mark.parametrize("options", [{"block": 2}, {"index": ((1,), (0,))}])
def test_single_elements_have_neither_block_nor_index(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"Slice of 'w' with dim=None .* leave them out, or name"):
        Slice("w", None, **options)


def test_a_wrong_block_is_told_in_positions() -> None:
    message = (
        r"group 'g' has 2 units of block 3, that is 6 positions, but dim 1 of '1\.weight' has 4; "
        r"check units and Slice\.block"
    )
    with pytest.raises(ValueError, match=message):
        gate(Slice("1.weight", 1, block=3))


def test_a_gate_per_element_needs_as_many_units_as_elements() -> None:
    with pytest.raises(ValueError, match=r"group 'g' has 2 units .* but '1\.weight' has 12; check"):
        gate(Slice("1.weight", None))


def test_an_index_lists_every_unit() -> None:
    message = r"group 'g' has 2 units, but Slice\.index for dim 1 of '1\.weight' lists 3; give one"
    with pytest.raises(ValueError, match=message):
        gate(Slice("1.weight", 1, index=((0,), (1,), (2,))))


@pytest.mark.parametrize("index", [((0, 1), (1, 2)), ((0,), (4,)), ((0,), (-1,))])
def test_an_index_neither_repeats_nor_leaves_the_tensor(index: tuple[tuple[int, ...], ...]) -> None:
    message = r"group 'g' .* dim 1 of '1\.weight' that repeat or lie outside 0\.\.3; each position"
    with pytest.raises(ValueError, match=message):
        gate(Slice("1.weight", 1, index=index))


@pytest.mark.parametrize("dim", [2, -3])
def test_a_dimension_must_exist(dim: int) -> None:
    message = (
        rf"group 'g' cuts dim {dim} of '1\.weight', .* 2 dimensions \(3, 4\); check Slice\.dim"
    )
    with pytest.raises(ValueError, match=message):
        gate(Slice("1.weight", dim))


@pytest.mark.parametrize("role", ["makes", "counts"])
def test_makes_and_counts_are_checked_like_reads(role: str) -> None:
    with pytest.raises(ValueError, match=r"group 'g' has 4 units .* dim 0 of '1\.weight' has 3"):
        gate(Slice("1.weight", 1), units=4, **{role: (Slice("1.weight", 0),)})


def test_an_unknown_tensor_is_answered_with_near_names() -> None:
    with pytest.raises(ValueError, match=r"group 'g' names the tensor '1\.wight'.* 1\.weight"):
        gate(Slice("1.wight", 1))


def test_names_of_groups_are_unique() -> None:
    group = Group("g", 4, READS)
    with pytest.raises(ValueError, match=r"group names must be unique, but \['g'\]"):
        resolve(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3)), [group, group])


def test_a_bare_slice_in_place_of_a_tuple_is_refused():
    with pytest.raises(TypeError, match=r"'g': reads must be a tuple of Slice, got Slice"):
        Group("g", 2, reads=Slice("w", 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("floor", [-1, 4])
def test_a_floor_beyond_the_units_is_refused(floor: int) -> None:
    with pytest.raises(ValueError, match=f"keep at least {floor} of its 3 units; floor lies betw"):
        Group("g", 3, reads=(Slice("a", 1),), floor=floor)
