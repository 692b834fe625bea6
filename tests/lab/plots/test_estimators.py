"""Bias, variance and cost: three panels, a row for each estimator, a mark for each stage."""

from typing import Any

import pytest

from l0arm.lab.plots import estimator_comparison
from l0arm.lab.tables.estimator_table import Line


def line(estimator: str, **changes: Any) -> Line:
    """An unbiased estimator at the start of training."""
    variance = {"variance": 1.0, "variance_error": 0.1, "ratio": 1.0, "ratio_error": 0.1}
    bias = {"bias": 0.0, "bias_error": 0.2, "bias_limit": 0.4, "bias_shown": False}
    cost = {"evaluations": 2.0, "evaluations_error": 0.0, "seconds": 0.003, "seconds_spread": 0.001}
    known = {"stage": "start", "unbiased": True, **variance, **bias, **cost}
    return Line(estimator, **{**known, **changes})


def test_every_number_is_where_it_belongs() -> None:
    bias = {"unbiased": False, "bias": 0.5, "bias_error": 0.1, "bias_shown": True}
    cost = {"evaluations": 1.0, "seconds": 0.002, "seconds_spread": 0.01}
    lines = [line("arm"), line("concrete", ratio=0.01, ratio_error=0.002, **bias, **cost)]
    left, middle, right = estimator_comparison(lines, title="T").axes
    assert [text.get_text() for text in left.get_yticklabels()] == ["concrete (biased)", "arm"]
    dot, limit = left.lines[0], left.lines[-1]
    assert dot.get_xdata().tolist() == [0.5]
    assert (limit.get_xdata().tolist(), limit.get_marker()) == ([0.4], "<")
    ((low, _), (high, _)) = left.collections[0].get_segments()[0]
    assert (low, high) == (pytest.approx(0.4), pytest.approx(0.6))
    assert middle.lines[0].get_xdata().tolist() == [1.0, 0.01]
    assert right.lines[0].get_xdata().tolist() == [3.0, 2.0]
    ((low, _), _) = right.collections[0].get_segments()[1]
    assert low > 0  # a bar that is wider than its value ends above 0
    assert [text.get_text() for text in right.texts] == ["1 f", "2 f"]


def test_no_variance_is_no_dot() -> None:
    lines = [line("arm"), line("straight-through", unbiased=False, ratio=0.0)]
    _, middle, _ = estimator_comparison(lines).axes
    assert middle.lines[0].get_xdata().tolist() == [1.0]


def test_no_line_is_an_error() -> None:
    with pytest.raises(ValueError, match="no estimator was measured"):
        estimator_comparison([])
