"""Fig. 4: the points recorded within epochs, a panel for each data set."""

from collections.abc import Callable
from typing import Any

import pytest

from l0arm.lab.plots import flops_by_step


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


def test_nothing_to_draw_is_an_error(dense_run: list[Any]) -> None:
    with pytest.raises(ValueError, match="no run recorded FLOPs by step"):
        flops_by_step({"CIFAR-10": {"dense": dense_run}})
