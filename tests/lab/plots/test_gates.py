"""Gate functions are the paper's equations; histograms are the recorded bins."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib.patches import StepPatch

from l0arm.lab.plots import gate_functions, gate_histograms, last_histograms
from l0arm.lab.plots.gates import ALL, OVERLAP, RIDGES, evenly_spaced, shares_of


def test_the_curves_are_the_equations() -> None:
    sigmoid, hard = gate_functions(scales=(1.0, 7.0)).axes
    for axes, g in (
        (sigmoid, lambda k, phi: 1 / (1 + np.exp(-k * phi))),
        (hard, lambda k, phi: np.clip(k / 7 * phi + 0.5, 0, 1)),
    ):
        for line, k in zip(axes.lines, (1.0, 7.0), strict=True):
            phi, drawn = line.get_data()
            assert line.get_label() == f"k = {k:g}"
            assert np.abs(drawn - g(k, phi)).max() < 1e-12
            assert (phi.min(), phi.max()) == (-4.0, 4.0)


def test_both_families_are_named() -> None:
    titles = [axes.get_title() for axes in gate_functions().axes]
    assert titles == ["(a) scaled sigmoid, Eq. 11", "(b) hard sigmoid, Eq. 12"]


def test_no_scale_is_an_error() -> None:
    with pytest.raises(ValueError, match="no scale k was given"):
        gate_functions(scales=())


def ridges(axes: Any) -> list[StepPatch]:
    return [patch for patch in axes.patches if isinstance(patch, StepPatch)]


def test_few_epochs_are_all_drawn_and_many_evenly_spaced(gated_run: Callable[..., Any]) -> None:
    assert [e.epoch for e in evenly_spaced(gated_run(5), 14)] == [1, 2, 3, 4, 5]
    assert [e.epoch for e in evenly_spaced(gated_run(200)[:199], 10)] == [
        1, 23, 45, 67, 89, 111, 133, 155, 177, 199,
    ]  # fmt: skip


def test_shares_of_all_gates_and_of_a_group(gated_run: Callable[..., Any]) -> None:
    last = gated_run(5)[-1]
    assert shares_of(last, "conv1") == ([0.5, 0.0, 0.0, 0.5], [5, 0, 0, 5])
    shares, counts = shares_of(last, ALL)
    assert counts == [5, 0, 0, 25]
    assert shares == pytest.approx([1 / 6, 0, 0, 5 / 6])


def test_a_ridge_is_as_high_as_its_bins(gated_run: Callable[..., Any]) -> None:
    epochs = gated_run(5)
    (axes,) = gate_histograms(epochs).axes
    tallest = max(max(shares_of(epoch, ALL)[0]) for epoch in epochs)
    for n, (ridge, epoch) in enumerate(zip(ridges(axes), epochs, strict=True)):
        values, edges, base = ridge.get_data()
        assert base == 4 - n
        assert np.allclose(edges, [0, 0.25, 0.5, 0.75, 1])
        assert np.allclose((values - base) * tallest / OVERLAP, shares_of(epoch, ALL)[0])


def test_the_last_epoch_is_in_front_and_epochs_are_named(gated_run: Callable[..., Any]) -> None:
    (axes,) = gate_histograms(gated_run(3)).axes
    orders = [ridge.get_zorder() for ridge in ridges(axes)]
    assert orders == sorted(orders)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["3", "2", "1"]


def test_two_hundred_epochs_do_not_hide_each_other(gated_run: Callable[..., Any]) -> None:
    (axes,) = gate_histograms(gated_run(200)).axes
    assert len(ridges(axes)) == RIDGES


def test_every_group_has_a_panel(gated_run: Callable[..., Any]) -> None:
    figure = gate_histograms(gated_run(2), by_group=True, title="LeNet-5")
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["(a) conv1 (10 gates)", "(b) fc1 (20 gates)"]
    assert figure.get_suptitle() == "LeNet-5"


def test_a_dense_run_has_no_histogram(dense_run: list[Any]) -> None:
    with pytest.raises(ValueError, match="no epoch has gates; choose a run"):
        gate_histograms(dense_run)


def test_a_panel_for_each_run_shows_the_share_of_its_gates(ended: Callable[..., Any]) -> None:
    runs = {"one": ended((3, 0, 1), (3, 0, 1)), "two": ended((0, 0, 8)), "three": ended((1, 1, 2))}
    figure = last_histograms({**runs, "four": runs["one"]}, title="Gates")
    assert [axes.get_title() for axes in figure.axes] == [
        "one\n8 gates",
        "two\n8 gates",
        "three\n4 gates",
        "four\n8 gates",
    ]
    shares = [axes.patches[0].get_data().values.tolist() for axes in figure.axes]
    assert shares[:3] == [[75.0, 0.0, 25.0], [0.0, 0.0, 100.0], [25.0, 25.0, 50.0]]
    assert [axes.get_ylabel() for axes in figure.axes] == ["% of gates", "", "", "% of gates"]


def test_without_gates_there_is_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match="no run has gates"):
        last_histograms({})


def test_a_bar_shows_how_high_a_share_of_the_gates_is(gated_run: Callable[..., Any]) -> None:
    (axes,) = gate_histograms(gated_run(5)).axes
    ridge = axes.patches[-1].get_data()  # of the last epoch: 5, 0, 0 and 25 of 30 gates
    bar = axes.lines[-1].get_ydata()
    (text,) = axes.texts
    share = float(text.get_text().split("%")[0]) / 100
    height = max(ridge.values) - ridge.baseline
    assert (bar[1] - bar[0]) / share == pytest.approx(height / (25 / 30))


def test_the_threshold_in_a_panel_is_named(ended: Callable[..., Any]) -> None:
    figure = last_histograms({"seed 0": ended((1, 1)), "seed 1": ended((2, 0))})
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["τ = 0.5 (Eq. 14)"]
