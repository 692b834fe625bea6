"""A draw: the positions it keeps of every dimension, worked out by hand."""

import pytest
import torch
from torch import nn

from l0arm import Group, Patch, Slice
from l0arm.gating.draw import Draw, Kept
from l0arm.gating.evaluation import Evaluations
from l0arm.gating.layout import Axis, Layout, resolve


@pytest.fixture
def layout() -> Layout:
    """Three filters of block 2, flattened to six inputs with gates of their own."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(6, 5))
    filters = Group(
        "filters", 3, reads=(Slice("1.weight", 1, block=2),), makes=(Slice("0.weight", 0),)
    )
    inputs = Group("inputs", 6, reads=(Slice("1.weight", 1),), select=Slice("1", -1))
    return resolve(model, [filters, inputs])


def draw(layout: Layout, filters: list[float], inputs: list[float]) -> Draw:
    return Draw(layout, torch.tensor(filters + inputs))


def read(layout: Layout) -> Axis:
    return layout.tensors["1.weight"].axes[1]


def made(layout: Layout) -> Axis:
    return layout.tensors["0.weight"].axes[0]


def as_list(value: torch.Tensor | None) -> list[float] | None:
    return None if value is None else value.tolist()


def test_all_open_keeps_everything(layout: Layout) -> None:
    z = draw(layout, [1, 1, 1], [1] * 6)
    assert z.kept(read(layout)) == z.kept(made(layout)) == Kept()


def test_a_position_is_kept_if_all_its_groups_keep_it(layout: Layout) -> None:
    kept = draw(layout, [1, 0, 1], [0, 1, 1, 1, 1, 1]).kept(read(layout))
    assert as_list(kept.index) == [1, 4, 5]


def test_the_gather_counts_among_what_still_arrives(layout: Layout) -> None:
    kept = draw(layout, [1, 0, 1], [0, 1, 1, 1, 1, 1]).kept(read(layout))
    assert as_list(kept.local) == [1, 2, 3]  # 0, 1, 4, 5 arrive; the first is gathered away


def test_nothing_is_gathered_when_all_that_arrives_is_read(layout: Layout) -> None:
    kept = draw(layout, [1, 0, 1], [1, 1, 0, 0, 1, 1]).kept(read(layout))
    assert (as_list(kept.index), kept.local) == ([0, 1, 4, 5], None)


def test_inputs_are_gathered_when_the_producer_sends_all(layout: Layout) -> None:
    kept = draw(layout, [1, 1, 1], [0, 1, 0, 1, 0, 1]).kept(read(layout))
    assert as_list(kept.index) == as_list(kept.local) == [1, 3, 5]


def test_binary_gates_fold_nothing(layout: Layout) -> None:
    assert draw(layout, [1, 0, 1], [0, 1, 1, 1, 1, 1]).kept(read(layout)).fold is None


def test_fractions_fold_as_a_product(layout: Layout) -> None:
    kept = draw(layout, [0.5, 0, 1], [0, 0.5, 1, 1, 1, 0.25]).kept(read(layout))
    assert as_list(kept.fold) == [0.25, 1, 0.25]


def test_fractions_are_never_folded_into_a_producer(layout: Layout) -> None:
    kept = draw(layout, [0.5, 0, 0.25], [1] * 6).kept(made(layout))
    assert (as_list(kept.index), kept.fold) == ([0, 2], None)


def test_an_empty_group_keeps_a_stand_in_with_zero_columns(layout: Layout) -> None:
    z = draw(layout, [0, 0, 0], [1] * 6)
    assert as_list(z.kept(made(layout)).index) == [0]
    assert as_list(z.kept(read(layout)).index) == [0, 1]
    assert as_list(z.kept(read(layout)).fold) == [0, 0]


def test_the_rows_of_a_stand_in_are_not_written(layout: Layout) -> None:
    assert as_list(draw(layout, [0, 0, 0], [1] * 6).kept(made(layout)).written) == [False]


def test_groups_without_a_common_open_position_keep_one_that_arrives(layout: Layout) -> None:
    kept = draw(layout, [0, 1, 0], [1, 1, 0, 0, 1, 1]).kept(read(layout))
    assert (as_list(kept.index), as_list(kept.fold), as_list(kept.local)) == ([2], [0], [0])


def test_a_mask_drops_nothing(layout: Layout) -> None:
    z = draw(layout, [0.5, 0, 1], [0, 0.5, 1, 1, 1, 0.25])
    assert as_list(z.mask(read(layout))) == [0, 0.25, 0, 0, 1, 0.25]
    assert z.mask(made(layout)) is None


def test_a_stand_in_counts_as_one_unit(layout: Layout) -> None:
    z = draw(layout, [0, 0, 0], [1, 1, 0, 0, 0, 0])
    assert (z.units_kept(0), z.units_kept(1)) == (1, 2)


def test_gates_with_a_graph_are_folded_with_it(layout: Layout) -> None:
    gates = torch.ones(9, requires_grad=True)
    fold = Draw(layout, gates).kept(read(layout)).fold
    (gradient,) = torch.autograd.grad(fold.sum(), gates)
    assert as_list(gradient) == [2, 2, 2, 1, 1, 1, 1, 1, 1]


def test_a_draw_that_must_not_write_is_the_same_draw(layout: Layout) -> None:
    z = draw(layout, [1, 0, 1], [1] * 6)
    twin = z.without_writing()
    assert (z.writes, twin.writes) == (True, False)
    assert as_list(twin.kept(made(layout)).index) == as_list(z.kept(made(layout)).index)


@pytest.mark.parametrize(
    ("filters", "binary"),
    [([1, 0, 1], True), ([0, 0, 0], True), ([0.5, 1, 1.5], False), ([-1, 0, 1], False)],
)
def test_only_zeros_and_ones_are_binary(layout: Layout, filters: list[float], binary: bool) -> None:
    assert draw(layout, filters, [1] * 6).binary == binary


def test_open_gates_are_counted_where_nothing_is_dropped_too() -> None:
    groups = [
        Group("weights", 12, reads=(Slice("0.weight", None),)),
        Group("outputs", 3, reads=(Slice("1.weight", 1),), makes=(Slice("0.weight", 0),)),
    ]
    layout = resolve(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), groups)
    assert [group.drops for group in layout.groups] == [False, True]
    z = Draw(layout, torch.tensor([1.0] * 7 + [0.0] * 5 + [0.0, 1.0, 1.0]))
    assert (z.counts, z.full, z.empty) == ([7, 2], [False, False], [])


def patched() -> Layout:
    """Three heads of four positions, and two units of another group."""
    model = nn.Sequential(nn.Linear(5, 12), nn.Linear(12, 2), nn.Linear(2, 3))
    positions = tuple(tuple(range(unit, 12, 4)) for unit in range(4))
    heads, within = Slice("1.weight", 1, block=4), Slice("1.weight", 1, index=positions)
    return resolve(
        model,
        [
            Group("heads", 3, reads=(heads,), makes=(Slice("0.weight", 0, block=4),)),
            Group("dims", 4, reads=(within,), makes=(Slice("0.weight", 0, index=positions),)),
            Group("rest", 2, reads=(Slice("2.weight", 1),), makes=(Slice("1.weight", 0),)),
        ],
    )


def test_a_number_is_a_product_of_groups_or_a_sum() -> None:
    z = Draw(patched(), torch.tensor([1.0, 1, 0, 1, 0, 1, 1, 1, 0]))
    heads, dims, rest = (Patch("0", "out_features", n) for n in (4, 3, 1))
    assert z.count_left(12, [(heads, 0)]) == 8
    assert z.count_left(12, [(heads, 0), (dims, 1)]) == 6  # two heads of three positions
    assert z.count_left(14, [(heads, 0), (rest, 2)]) == 9  # positions of all heads and others


def test_gates_act_twice_only_where_positions_are_read_and_made() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    first, second = (
        Slice("0.weight", 0, index=((0,), (1,))),
        Slice("0.weight", 0, index=((2,), (3,))),
    )
    group = Group("apart", 2, reads=(first,), makes=(second,))
    assert resolve(model, [group]).twice == ()
    assert resolve(model, [Group("same", 2, reads=(first,), makes=(first,))]).twice == (0,)


@pytest.mark.parametrize("changes", [0, 1, 2, 5])
def test_a_draw_that_follows_another_equals_one_computed_alone(
    layout: Layout, changes: int
) -> None:
    """What is known of another draw is reused where the gates agree, whatever else differs."""
    random = torch.Generator().manual_seed(changes)
    for _ in range(60):
        before = torch.randint(2, (9,), generator=random).float()
        after = before.clone()
        moved = torch.randperm(9, generator=random)[:changes]
        after[moved] = 1.0 - after[moved]
        other = Draw(layout, before)
        for axis in (read(layout), made(layout)):
            other.kept(axis)
        following, alone = Draw(layout, after, known=(other,)), Draw(layout, after)
        assert following.repeats == (changes == 0)
        for name in ("counts", "full", "short", "empty", "binary", "dense"):
            assert getattr(following, name) == getattr(alone, name)
        assert all(following.is_open(gate) == alone.is_open(gate) for gate in range(10))
        assert [following.agrees(other, g) for g in (0, 1)] == [
            alone.agrees(other, g) for g in (0, 1)
        ]
        for axis in (read(layout), made(layout)):
            one, two = following.kept(axis), alone.kept(axis)
            for name in ("index", "fold", "local", "written"):
                assert as_list(getattr(one, name)) == as_list(getattr(two, name))


def test_a_draw_with_a_fraction_follows_none(layout: Layout) -> None:
    other = draw(layout, [1, 1, 1], [1] * 6)
    z = torch.tensor([0.5, 1, 1] + [1.0] * 6)
    following = Draw(layout, z, known=(other,))
    assert not following.binary
    assert as_list(following.kept(read(layout)).fold) == [0.5, 0.5, 1, 1, 1, 1]


def test_a_draw_of_another_precision_is_not_taken_for_the_same(layout: Layout) -> None:
    other = draw(layout, [1, 0, 1], [1] * 6)
    z = torch.tensor([1.0, 0, 1] + [1.0] * 6, dtype=torch.float64)
    assert not Draw(layout, z, known=(other,)).repeats


def test_the_draw_that_steps_repeat_is_remembered_beside_the_latest() -> None:
    """Decided gates: one that flips once costs no positions in the step after it."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5))
    group = Group("g", 3, reads=(Slice("1.weight", 1),), makes=(Slice("0.weight", 0),))
    evaluations, usual = Evaluations(), torch.tensor([1.0, 0.0, 1.0])
    layout, flipped = resolve(model, [group]), torch.tensor([1.0, 1.0, 1.0])
    repeats = []
    for z in (usual, usual, flipped, usual, flipped, usual):
        evaluations.remember(Draw(layout, z, known=evaluations.recent))
        repeats.append(evaluations.recent[0].repeats)
    assert repeats == [False, True, False, True, False, True]
