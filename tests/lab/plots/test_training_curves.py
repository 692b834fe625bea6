"""Curves of training: the numbers of the records, in readable units, with one colour for a run."""

from collections.abc import Callable
from typing import Any

import pytest

from l0arm.lab.plots import accuracy_by_epoch, flops_by_step, prune_rate_and_flops
from l0arm.lab.plots.canvas import looks, new_figure
from l0arm.lab.plots.training_curves import (
    FlopsCurve,
    by_epoch,
    by_step,
    dense_flops,
    draw_flops,
    lowest_after_start,
    unit_of,
)


@pytest.fixture
def columns(gated_run: Callable[..., Any]) -> dict[str, Any]:
    one = {"L0-AR": gated_run(3, passes=1), "L0-ARM": gated_run(3)}
    return {"λ = 0.1/N": one, "λ sep.": {"L0-ARM": gated_run(5)}}


def test_rates_are_drawn_by_epoch(columns: dict[str, Any]) -> None:
    rates = prune_rate_and_flops(columns).axes[1]
    (line,) = rates.lines
    assert [list(values) for values in line.get_data()] == [[1, 2, 3, 4, 5], [10, 20, 30, 40, 50]]
    assert rates.get_ylim() == (0.0, 101.0)


def test_no_legend_covers_a_panel(columns: dict[str, Any]) -> None:
    figure = prune_rate_and_flops(columns)
    assert all(axes.get_legend() is None for axes in figure.axes)
    (legend,) = figure.legends
    labels = {text.get_text().partition(",")[0] for text in legend.get_texts()}
    assert labels >= {label for runs in columns.values() for label in runs if label != "dense"}


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


def test_only_dense_runs_are_an_error(dense_run: list[Any]) -> None:
    with pytest.raises(ValueError, match="train an L0 method first"):
        prune_rate_and_flops({"λ": {"dense": dense_run}})


def test_points_are_drawn_by_iteration(gated_run: Callable[..., Any]) -> None:
    runs = {"L0-ARM": gated_run(2, dense=2e9), "L0-AR": gated_run(2, passes=1, dense=2e9)}
    figure = flops_by_step({"CIFAR-10": runs, "CIFAR-100": runs})
    assert [axes.get_title() for axes in figure.axes] == ["(a) CIFAR-10", "(b) CIFAR-100"]
    training, inference, both, _ = figure.axes[1].lines
    assert list(training.get_xdata()) == [11, 15, 21, 25]
    assert list(training.get_ydata()) == [3.0, 3.0, 2.0, 2.0]
    assert list(inference.get_ydata()) == [1.5, 1.5, 1.0, 1.0]
    assert both.get_label() == "L0-AR, training and inference"
    labels = (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel())
    assert labels == ("iteration", "expected GFLOPs per image")


def test_a_data_set_without_points_has_no_panel(
    gated_run: Callable[..., Any], dense_run: list[Any]
) -> None:
    figure = flops_by_step({"CIFAR-10": {"dense": dense_run}, "CIFAR-100": {"a": gated_run()}})
    assert [axes.get_title() for axes in figure.axes] == ["CIFAR-100"]


def test_runs_without_points_are_an_error(dense_run: list[Any]) -> None:
    with pytest.raises(ValueError, match="no run recorded FLOPs by step"):
        flops_by_step({"CIFAR-10": {"dense": dense_run}})


def test_every_run_that_began_is_drawn(gated_run: Callable[..., Any], dense_run: list[Any]) -> None:
    figure = accuracy_by_epoch({"dense": dense_run, "L0-ARM": gated_run(2), "later": []}, title="T")
    (axes,) = figure.axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert drawn == {"dense": [96.0, 97.0, 98.0], "L0-ARM": [94.0, 98.0]}
    labels = (axes.get_xlabel(), axes.get_ylabel(), axes.get_title())
    assert labels == ("epoch", "test accuracy (%)", "T")


def test_the_label_says_where_a_cut_axis_begins(dense_run: list[Any]) -> None:
    (cut,) = accuracy_by_epoch({"dense": dense_run}, lowest=96.5).axes
    assert (cut.get_ylim()[0], cut.get_ylabel()) == (96.5, "test accuracy (%, from 96.5 on)")
    (whole,) = accuracy_by_epoch({"dense": dense_run}, lowest=90.0).axes
    assert (whole.get_ylim()[0], whole.get_ylabel()) == (90.0, "test accuracy (%)")


def test_the_lowest_accuracy_leaves_out_the_first_tenth(gated_run: Callable[..., Any]) -> None:
    epochs = gated_run(20)  # 90.4, 90.8, 91.2, ..., 98.0: the first two are left out
    assert lowest_after_start({"run": epochs}) == pytest.approx(
        91.2 - 0.1 * (98.0 - 91.2), abs=0.051
    )
    assert lowest_after_start({"run": epochs[:1]}) == pytest.approx(90.4 - 0.1)


def test_a_run_without_epochs_is_an_error() -> None:
    for draw in (accuracy_by_epoch, lowest_after_start):
        with pytest.raises(ValueError, match="no run has finished an epoch"):
            draw({"run": []})


def test_curves_by_epoch_and_by_step(gated_run: Callable[..., Any], dense_run: list[Any]) -> None:
    epochs = gated_run(2, passes=2, dense=100.0)
    assert by_epoch(epochs) == FlopsCurve((1, 2), (150.0, 100.0), (75.0, 50.0))
    assert by_step(epochs) == FlopsCurve(
        (11, 15, 21, 25), (150.0, 150.0, 100.0, 100.0), (75.0, 75.0, 50.0, 50.0)
    )
    assert by_epoch(dense_run) == by_step(dense_run) == FlopsCurve((), (), ())


def test_one_pass_is_seen_in_the_figures(gated_run: Callable[..., Any]) -> None:
    assert by_epoch(gated_run(3, passes=1)).one_pass
    assert not by_epoch(gated_run(3, passes=2)).one_pass


@pytest.mark.parametrize(
    ("value", "unit"),
    [(12.0, "FLOPs"), (999.0, "FLOPs"), (1e3, "kFLOPs"), (4.6e6, "MFLOPs"), (1e10, "GFLOPs")],
)
def test_units(value: float, unit: str) -> None:
    assert unit_of(value)[1] == unit


def test_the_dense_cost_is_known_from_any_run(
    gated_run: Callable[..., Any], dense_run: list[Any]
) -> None:
    assert dense_flops({"dense": dense_run, "arm": gated_run(dense=7.0)}) == 7.0
    assert dense_flops({"dense": dense_run, "not begun": []}) == 0.0


def test_training_is_solid_inference_dashed_and_one_pass_a_single_line(
    gated_run: Callable[..., Any],
) -> None:
    runs = {"L0-AR": by_epoch(gated_run(2, passes=1)), "L0-ARM": by_epoch(gated_run(2, passes=2))}
    axes = new_figure(height=3.0).subplots()
    assert draw_flops(axes, runs, looks(runs), dense=4e6) == "expected MFLOPs per image"
    drawn = {line.get_label(): line for line in axes.lines}
    assert list(drawn) == [
        "L0-AR, training and inference",
        "L0-ARM, training",
        "L0-ARM, inference",
        "dense, one pass",
    ]
    assert list(drawn["L0-ARM, training"].get_ydata()) == [6.0, 4.0]
    assert list(drawn["L0-ARM, inference"].get_ydata()) == [3.0, 2.0]
    assert list(drawn["dense, one pass"].get_ydata()) == [4.0, 4.0]
    styles = [drawn[f"L0-ARM, {part}"].get_linestyle() for part in ("training", "inference")]
    assert styles == ["-", "--"]
    assert axes.get_ylim()[0] == 0.0
