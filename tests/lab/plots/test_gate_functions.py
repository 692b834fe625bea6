"""Fig. 1 draws Eq. 11 and Eq. 12."""

import numpy as np
import pytest

from l0arm.lab.plots import gate_functions


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
