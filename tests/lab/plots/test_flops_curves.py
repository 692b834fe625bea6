"""Expected FLOPs: what is taken from the records, in which unit, and how it is drawn."""

from collections.abc import Callable
from typing import Any

import pytest

from l0arm.lab.plots.canvas import looks, new_figure
from l0arm.lab.plots.flops_curves import (
    FlopsCurve,
    by_epoch,
    by_step,
    dense_flops,
    draw_flops,
    unit_of,
)


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
