"""Fig. 5: accuracies as recorded; an axis that begins later says so."""

from collections.abc import Callable
from typing import Any

import pytest

from l0arm.lab.plots import accuracy_by_epoch
from l0arm.lab.plots.accuracy import settled


def test_every_run_that_began_is_drawn(gated_run: Callable[..., Any], dense_run: list[Any]) -> None:
    figure = accuracy_by_epoch({"dense": dense_run, "L0-ARM": gated_run(2), "later": []}, title="T")
    (axes,) = figure.axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert drawn == {"dense": [96.0, 97.0, 98.0], "L0-ARM": [94.0, 98.0]}
    labels = (axes.get_xlabel(), axes.get_ylabel(), axes.get_title())
    assert labels == ("epoch", "test accuracy (%)", "T")


def test_what_is_cut_off_is_said(dense_run: list[Any]) -> None:
    (cut,) = accuracy_by_epoch({"dense": dense_run}, lowest=96.5).axes
    assert (cut.get_ylim()[0], cut.get_ylabel()) == (96.5, "test accuracy (%, from 96.5 on)")
    (whole,) = accuracy_by_epoch({"dense": dense_run}, lowest=90.0).axes
    assert (whole.get_ylim()[0], whole.get_ylabel()) == (90.0, "test accuracy (%)")


def test_the_settled_accuracy_leaves_out_the_first_tenth(gated_run: Callable[..., Any]) -> None:
    epochs = gated_run(20)  # 90.4, 90.8, 91.2, ..., 98.0: the first two are left out
    assert settled({"run": epochs}) == pytest.approx(91.2 - 0.1 * (98.0 - 91.2), abs=0.051)
    assert settled({"run": epochs[:1]}) == pytest.approx(90.4 - 0.1)


def test_no_epoch_is_an_error() -> None:
    for draw in (accuracy_by_epoch, settled):
        with pytest.raises(ValueError, match="no run has finished an epoch"):
            draw({"run": []})
