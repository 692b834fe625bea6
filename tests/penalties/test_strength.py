"""lambda: one number, a sequence or a mapping; anything else is refused with a reason."""

import pytest

from l0arm.gating import Group, Slice
from l0arm.penalties import L0, L1, L2, Strength
from l0arm.penalties.strength import per_group

GROUPS = [Group(name, 2, reads=(Slice(f"{name}.weight", 1),)) for name in ("first", "second")]


def test_one_number_serves_all_groups() -> None:
    assert per_group(0.5, GROUPS) == [0.5, 0.5]


def test_a_sequence_goes_by_position() -> None:
    assert per_group((1, 2.5), GROUPS) == [1.0, 2.5]


def test_a_mapping_goes_by_name() -> None:
    assert per_group({"second": 2.5, "first": 1}, GROUPS) == [1.0, 2.5]


@pytest.mark.parametrize("penalty", [L0, L1, L2])
@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf"), "0.1", None])
def test_a_bad_number_is_refused_when_the_penalty_is_built(penalty: type, bad: object) -> None:
    with pytest.raises(ValueError, match="lam must be a finite number >= 0, or one per group; got"):
        penalty(bad)


@pytest.mark.parametrize("lam", [[0.1, -1.0], {"first": 0.1, "second": -1.0}])
def test_a_bad_number_among_good_ones_is_named(lam: Strength) -> None:
    with pytest.raises(ValueError, match=r"got -1\.0 .*in .*0\.1"):
        L0(lam)


def test_a_wrong_number_of_strengths_names_the_groups() -> None:
    with pytest.raises(ValueError, match=r"3 entries, but there are 2 groups \(first, second\)"):
        per_group([0.1, 0.2, 0.3], GROUPS)


@pytest.mark.parametrize(
    "lam", [{"first": 1.0}, {"first": 1.0, "third": 1.0}, {"first": 1.0, "second": 1.0, "x": 1.0}]
)
def test_wrong_names_are_answered_with_the_right_ones(lam: Strength) -> None:
    with pytest.raises(ValueError, match=r"the model has \['first', 'second'\]; give one number"):
        per_group(lam, GROUPS)
