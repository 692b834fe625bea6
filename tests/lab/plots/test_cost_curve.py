"""Accuracy against cost: every point is drawn, the Pareto points joined and named."""

from dataclasses import dataclass

import pytest

from l0arm.lab.plots import cost_curve


@dataclass(frozen=True)
class Point:
    threshold: float
    accuracy: float
    macs: int
    pareto: bool


def test_points_are_where_they_belong() -> None:
    points = [
        Point(0.2, 97.0, 300, True),
        Point(0.5, 90.0, 200, False),
        Point(0.7, 95.0, 100, True),
    ]
    (axes,) = cost_curve(points, title="T").axes
    behind, best = ([*zip(*line.get_data(), strict=True)] for line in axes.lines)
    assert behind == [(200, 90.0)]
    assert best == [(100, 95.0), (300, 97.0)]
    assert [text.get_text() for text in axes.texts] == ["0.7", "0.2"]
    labels = (axes.get_xlabel(), axes.get_ylabel(), axes.get_title())
    assert labels == ("multiply-adds for one input", "test accuracy (%)", "T")


def test_no_point_is_an_error() -> None:
    with pytest.raises(ValueError, match="no threshold was tried"):
        cost_curve([])
