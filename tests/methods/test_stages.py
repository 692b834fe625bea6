"""Stages laid out over the epochs, schedules, and refused options of stages and methods."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from l0arm.contracts import constant
from l0arm.estimators import DisARM
from l0arm.gates import Bernoulli
from l0arm.methods import (
    Method,
    Stage,
    bc_ghs,
    bc_gnj,
    group_lasso,
    l0_best,
    l1_filter,
    magnitude,
    random_units,
    sbp,
)
from l0arm.methods.stages import Ramp, first_epochs, never

Factory = Callable[..., Method]
OF_EPOCHS: list[tuple[Factory, str]] = [
    (partial(group_lasso, 0.1), "pretrain"),
    (partial(group_lasso, 0.1), "finetune"),
    (partial(l0_best, 0.1), "settle"),
    (partial(l0_best, 0.1), "warm_up"),
    (partial(sbp, 0.1), "pretrain"),
    (l1_filter, "train"),
    (magnitude, "train"),
    (random_units, "train"),
]
OF_IMAGES: list[Factory] = [
    partial(bc_ghs, 0.1),
    partial(bc_gnj, 0.1),
    partial(Method, "mine", Bernoulli(), DisARM()),
]
wrong_shares = pytest.mark.parametrize(
    "share", [1.0, 1.5, -1, -0.1, float("nan"), float("inf"), "a", None]
)


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
def test_a_ramp_needs_two_points_in_order(points: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="0 <= start < end <= 1"):
        Ramp(*points)


@wrong_shares
@pytest.mark.parametrize(("make", "option"), OF_EPOCHS)
def test_a_share_of_the_epochs_lies_between_0_and_1(make: Factory, option: str, share: Any) -> None:
    message = f"^{option} is a share of the epochs, from 0 up to 1; got {share!r}$"
    with pytest.raises(ValueError, match=message):
        make(**{option: share})


@wrong_shares
@pytest.mark.parametrize("make", OF_IMAGES)
def test_a_share_of_the_images_lies_between_0_and_1(make: Factory, share: Any) -> None:
    message = f"^held_out is a share of the training images, from 0 up to 1; got {share!r}$"
    with pytest.raises(ValueError, match=message):
        make(held_out=share)


def test_shares_that_leave_no_epochs_for_the_penalty_are_refused() -> None:
    for pretrain, finetune in ((0.6, 0.6), (0.5, 0.5)):
        message = f"pretrain={pretrain} and finetune={finetune} leave no epochs to shrink in"
        with pytest.raises(ValueError, match=message):
            group_lasso(0.1, pretrain=pretrain, finetune=finetune)


@pytest.mark.parametrize(("make", "option"), OF_EPOCHS)
def test_a_share_of_0_omits_a_stage(make: Factory, option: str) -> None:
    usual, without = make().stages, make(**{option: 0}).stages
    gone = {"warm_up": 0, "settle": 2}.get(option, 1)  # l0-best also omits its last stage
    assert len(without) == max(1, len(usual) - gone)
    assert sum(stage.share for stage in without) == pytest.approx(1.0)


@pytest.mark.parametrize("share", [0, 0.0, -0.5, float("nan"), float("inf"), "a"])
def test_a_stage_needs_a_positive_share(share: Any) -> None:
    with pytest.raises(ValueError, match="the share of stage 'tune' must be a finite number > 0"):
        Stage("tune", share)


wrong_rates = pytest.mark.parametrize("rate", [-1, float("nan"), float("inf"), "a", None])


@wrong_rates
@pytest.mark.parametrize("name", ["lr", "gate_lr"])
def test_a_factor_of_a_learning_rate_is_a_finite_number(name: str, rate: Any) -> None:
    with pytest.raises(ValueError, match=f"stage 'tune' multiplies learning rates by {name}, a "):
        Stage("tune", **{name: rate})


@wrong_rates
@pytest.mark.parametrize(
    ("make", "option"),
    [(partial(l0_best, 0.1), "settle_lr"), (l1_filter, "retrain_lr"), (magnitude, "retrain_lr")],
)
def test_methods_check_the_rates_of_their_stages(make: Factory, option: str, rate: Any) -> None:
    with pytest.raises(ValueError, match="multiplies learning rates"):
        make(**{option: rate})


@pytest.mark.parametrize("make", [bc_gnj, bc_ghs])
@pytest.mark.parametrize("tolerance", [-0.1, 101, float("nan"), "a"])
def test_a_tolerance_is_in_points_of_accuracy(make: Factory, tolerance: Any) -> None:
    with pytest.raises(ValueError, match="tolerance is how many points of accuracy"):
        make(0.1, tolerance=tolerance)
