"""Gates of pixels as an image, filters as images, closed ones empty."""

import numpy as np
import pytest

from l0arm.lab.plots import surviving_filters, surviving_inputs


def test_pixels_are_where_their_gates_say() -> None:
    pi = [0.1, 0.9, 0.5, 0.6, 0.2, 0.51]
    left, right = surviving_inputs(pi, shape=(2, 3)).axes[:2]
    assert np.allclose(left.images[0].get_array(), [[0.1, 0.9, 0.5], [0.6, 0.2, 0.51]])
    kept = right.images[0].get_array().astype(int).tolist()
    assert kept == [[0, 1, 0], [1, 0, 1]]  # at tau itself a gate is closed, Eq. 14
    assert right.get_title() == "3 of 6 inputs kept (dark)"


def test_gates_that_are_no_image_are_refused() -> None:
    with pytest.raises(ValueError, match="300 gates do not make an image of 28 x 28"):
        surviving_inputs([0.5] * 300)


def test_only_open_filters_are_drawn() -> None:
    weight = np.arange(3 * 4, dtype=float).reshape(3, 1, 2, 2) - 6.0
    figure = surviving_filters(weight, [0.9, 0.2, 0.8])
    first, closed, last = figure.axes
    assert np.array_equal(first.images[0].get_array(), [[-6, -5], [-4, -3]])
    assert np.array_equal(last.images[0].get_array(), [[2, 3], [4, 5]])
    assert len(closed.images) == 0
    assert first.images[0].get_clim() == last.images[0].get_clim() == (-6.0, 6.0)
    assert figure.get_suptitle() == "2 of 3 filters kept; blue < 0 < red, ±6"


def test_three_channels_are_averaged() -> None:
    weight = np.stack([np.full((2, 2), c) for c in (1.0, 2.0, 6.0)])[None]
    (axes,) = surviving_filters(weight, [1.0]).axes
    assert np.array_equal(axes.images[0].get_array(), np.full((2, 2), 3.0))


def test_many_filters_are_cut_and_the_title_says_so() -> None:
    figure = surviving_filters(np.ones((30, 1, 2, 2)), [1.0] * 30, most=12, called="neurons")
    assert len(figure.axes) == 12
    assert figure.get_suptitle().startswith("30 of 30 neurons kept, the first 12 shown")


def test_a_layer_with_nothing_left_can_be_drawn() -> None:
    figure = surviving_filters(np.ones((2, 1, 2, 2)), [0.0, 0.0])
    assert [len(axes.images) for axes in figure.axes] == [0, 0]


def test_wrong_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="got 50 x 20 x 5 x 5; only a layer that reads"):
        surviving_filters(np.ones((50, 20, 5, 5)), [1.0] * 50)
    with pytest.raises(ValueError, match="2 filters have 3 gates"):
        surviving_filters(np.ones((2, 1, 2, 2)), [1.0] * 3)
