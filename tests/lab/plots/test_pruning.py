"""Fig. 3: a column for each lambda, a colour for each method, records drawn as they are."""

from collections.abc import Callable
from typing import Any

import pytest

from l0arm.lab.plots import prune_rate_and_flops


@pytest.fixture
def columns(gated_run: Callable[..., Any]) -> dict[str, Any]:
    one = {"L0-AR": gated_run(3, passes=1), "L0-ARM": gated_run(3)}
    return {"λ = 0.1/N": one, "λ sep.": {"L0-ARM": gated_run(5)}}


def test_rates_are_drawn_by_epoch(columns: dict[str, Any]) -> None:
    rates = prune_rate_and_flops(columns).axes[1]
    (line,) = rates.lines
    assert [list(values) for values in line.get_data()] == [[1, 2, 3, 4, 5], [10, 20, 30, 40, 50]]
    assert rates.get_ylim() == (0.0, 100.0)


def test_panels_are_those_of_the_paper(columns: dict[str, Any]) -> None:
    axes = prune_rate_and_flops(columns).axes
    assert [a.get_title() for a in axes] == [
        "(a) λ = 0.1/N",
        "(b) λ sep.",
        "(c) λ = 0.1/N",
        "(d) λ sep.",
    ]
    assert [a.get_ylabel() for a in axes[::2]] == ["prune rate (%)", "expected MFLOPs per image"]


def test_a_method_has_one_colour_in_all_panels(columns: dict[str, Any]) -> None:
    lines = [line for axes in prune_rate_and_flops(columns).axes for line in axes.lines]
    arm = {line.get_color() for line in lines if line.get_label().startswith("L0-ARM")}
    ar = {line.get_color() for line in lines if line.get_label().startswith("L0-AR,")}
    assert (len(arm), len(ar)) == (1, 1)
    assert arm != ar


def test_panels_of_one_network_share_a_scale_and_others_do_not(
    columns: dict[str, Any], gated_run: Callable[..., Any]
) -> None:
    low, high = (a.get_ylim()[1] for a in prune_rate_and_flops(columns).axes[2:])
    assert low == high
    other = prune_rate_and_flops({**columns, "MLP": {"L0-ARM": gated_run(3, dense=500.0)}})
    assert [a.get_ylabel() for a in other.axes[3:]] == [
        "expected MFLOPs per image",
        "expected MFLOPs per image",
        "expected FLOPs per image",
    ]
    assert other.axes[3].get_ylim()[1] < 10.0 < 500.0 < other.axes[5].get_ylim()[1]


def test_dense_runs_and_empty_columns_are_left_out(
    columns: dict[str, Any], dense_run: list[Any]
) -> None:
    columns["λ = 0.1/N"]["dense"] = dense_run
    columns["none"] = {"dense": dense_run, "not begun": []}
    axes = prune_rate_and_flops(columns).axes
    assert len(axes) == 4
    assert [line.get_label() for line in axes[0].lines] == ["L0-AR", "L0-ARM"]


def test_nothing_to_draw_is_an_error(dense_run: list[Any]) -> None:
    with pytest.raises(ValueError, match="train an L0 method first"):
        prune_rate_and_flops({"λ": {"dense": dense_run}})
