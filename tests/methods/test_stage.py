"""Stages are laid over the epochs, each at least one long."""

import pytest

from l0arm.contracts import Stage, constant
from l0arm.methods.stages import Ramp, first_epochs, never


def stages(*shares: float) -> list[Stage]:
    return [Stage(str(number), share) for number, share in enumerate(shares)]


@pytest.mark.parametrize(
    ("shares", "epochs", "starts"),
    [
        ((1.0,), 5, [0]),
        ((0.5, 0.5), 200, [0, 100]),
        ((0.9, 0.1), 200, [0, 180]),
        ((2.0, 1.0, 1.0), 8, [0, 4, 6]),  # shares are relative
        ((0.9, 0.1), 2, [0, 1]),
        ((0.01, 0.01, 0.98), 10, [0, 1, 2]),  # no stage is left out
        ((0.98, 0.01, 0.01), 10, [0, 8, 9]),
        ((0.5, 0.1, 0.1, 0.3), 4, [0, 1, 2, 3]),
    ],
)
def test_where_stages_begin(shares: tuple[float, ...], epochs: int, starts: list[int]) -> None:
    assert first_epochs(stages(*shares), epochs) == starts


def test_more_stages_than_epochs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"3 stages \(0, 1, 2\) need at least as many epochs"):
        first_epochs(stages(1, 1, 1), 2)


def test_a_ramp_is_0_before_and_1_after() -> None:
    ramp = Ramp(0.025, 0.1)  # epochs 5 to 20 of 200
    assert [ramp(epoch / 200) for epoch in (0, 5, 20, 199)] == [0.0, 0.0, 1.0, 1.0]
    assert ramp(12.5 / 200) == pytest.approx(0.5)
    assert (constant(0.0), never(1.0)) == (1.0, 0.0)


@pytest.mark.parametrize("points", [(0.5, 0.5), (-0.1, 0.5), (0.5, 1.1)])
def test_a_ramp_that_leads_nowhere_is_refused(points: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="0 <= start < end <= 1"):
        Ramp(*points)
