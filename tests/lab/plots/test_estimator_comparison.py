"""Bias, variance and cost: three panels, a row for each estimator, a mark for each stage."""

from dataclasses import dataclass, replace

import pytest

from l0arm.lab.plots import estimator_comparison


@dataclass(frozen=True)
class Line:
    estimator: str
    stage: str
    unbiased: bool = True
    ratio: float = 1.0
    ratio_error: float = 0.1
    bias: float = 0.0
    bias_error: float = 0.2
    bias_limit: float = 0.4
    bias_shown: bool = False
    evaluations: float = 2.0
    seconds: float = 0.003
    seconds_spread: float = 0.001


def test_every_figure_is_where_it_belongs() -> None:
    biased = Line("concrete", "start", False, 0.01, 0.002, 0.5, 0.1, 0.7, True, 1.0, 0.002, 0.01)
    lines = [Line("arm", "start"), replace(biased, stage="start")]
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
    lines = [Line("arm", "start"), Line("straight-through", "start", False, ratio=0.0)]
    _, middle, _ = estimator_comparison(lines).axes
    assert middle.lines[0].get_xdata().tolist() == [1.0]


def test_no_line_is_an_error() -> None:
    with pytest.raises(ValueError, match="no estimator was measured"):
        estimator_comparison([])
