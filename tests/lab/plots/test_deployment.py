"""Points of a sweep are where they belong; bars are medians, and whiskers show the spread."""

from itertools import combinations

import pytest

from l0arm.lab.plots import cost_curve, deployed_forms
from l0arm.lab.plots.deployment import place
from l0arm.lab.runs.trained import SweepPoint
from l0arm.lab.tables.bench_record import BenchRecord, FormRecord, SpreadRecord, TimedRecord


def point(threshold: float, accuracy: float, macs: int, pareto: bool) -> SweepPoint:
    return SweepPoint(threshold, (1,), 10, macs, accuracy, pareto)


def timed(threads: int, batch: int, scale: float) -> TimedRecord:
    dense = SpreadRecord(median=scale * 1.12, low=scale * 0.62, high=scale * 1.55)
    onnx = SpreadRecord(median=scale * 0.125, low=scale * 0.1, high=scale * 10.95)
    return TimedRecord(threads=threads, batch=batch, ms={"dense": dense, "onnx": onnx})


SIZES = {
    "dense": FormRecord(bytes=152_648, parameters=37_898),
    "onnx": FormRecord(bytes=76_073),
}
TIMES = [timed(1, 1, 1.0), timed(1, 64, 8.0), timed(1, 256, 32.0), timed(2, 1, 1.0)]
FORMS = BenchRecord(quick=False, forms=SIZES, latency=TIMES)


def test_points_are_where_they_belong() -> None:
    points = [
        point(0.2, 97.0, 300, True),
        point(0.5, 90.0, 200, False),
        point(0.7, 95.0, 100, True),
    ]
    (axes,) = cost_curve(points, title="T").axes
    behind, best = ([*zip(*line.get_data(), strict=True)] for line in axes.lines)
    assert behind == [(200, 90.0)]
    assert best == [(100, 95.0), (300, 97.0)]
    assert [text.get_text() for text in axes.texts] == ["0.2", "0.7"]
    labels = (axes.get_xlabel(), axes.get_ylabel(), axes.get_title())
    assert labels == ("multiply-adds for one input", "test accuracy (%)", "T")


def test_labels_of_points_that_lie_together_do_not_overprint() -> None:
    together = [point(0.95, 9.7, 136, True), point(0.9, 10.7, 1_837, True)]
    apart = [point(0.8, 81.8, 19_066, True), point(0.3, 98.5, 235_050, True)]
    figure = cost_curve(together + apart)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert {text.get_text() for text in axes.texts} == {"0.95", "0.9", "0.8", "0.3"}
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_no_point_is_an_error() -> None:
    with pytest.raises(ValueError, match="no threshold was tried"):
        cost_curve([])


def test_a_panel_for_each_batch_and_for_the_sizes() -> None:
    axes = deployed_forms(FORMS).axes
    assert [a.get_title() for a in axes] == [
        "batch 1, 1 thread",
        "batch 64, 1 thread",
        "batch 256, 1 thread",
        "batch 1, 2 threads",
        "bytes",
        "parameters",
    ]
    assert [a.get_ylabel() for a in axes] == ["ms"] * 4 + ["", ""]
    heights = [[bar.get_height() for bar in a.patches] for a in axes]
    assert heights == [
        *([scale * 1.12, scale * 0.125] for scale in (1.0, 8.0, 32.0, 1.0)),
        [152_648, 76_073],
        [37_898],
    ]
    assert {a.get_ylim()[0] for a in axes} == {0.0}


def test_names_and_heights_stand_below_the_bars() -> None:
    axes = deployed_forms(FORMS).axes
    labels = [[label.get_text() for label in a.get_xticklabels()] for a in axes]
    assert labels[0] == ["dense\n1.12", "onnx\n0.125"]
    assert labels[4] == ["dense\n153 k", "onnx\n76.1 k"]
    assert labels[5] == ["dense\n37.9 k"]


def test_a_form_has_one_colour_in_all_panels() -> None:
    axes = deployed_forms(FORMS).axes
    colours = [[bar.get_facecolor() for bar in a.patches] for a in axes]
    assert all(panel == colours[0] for panel in colours[:5])
    assert colours[5] == colours[0][:1]
    assert len(set(colours[0])) == 2


def whiskers(panel: int, forms: BenchRecord = FORMS) -> list[tuple[float, float]]:
    collections = deployed_forms(forms).axes[panel].collections
    return [(one.get_segments()[0][0][1], one.get_segments()[0][1][1]) for one in collections]


def test_whiskers_reach_from_the_smallest_to_the_largest() -> None:
    assert whiskers(0)[0] == pytest.approx((0.62, 1.55))
    assert whiskers(4) == []  # sizes have no spread


def test_one_disturbed_round_does_not_flatten_the_bars() -> None:
    """The whisker ends at twice the tallest bar, and the number is written there."""
    axes = deployed_forms(FORMS).axes[0]
    assert whiskers(0)[1] == pytest.approx((0.1, 2 * 1.12))
    assert [text.get_text() for text in axes.texts] == ["to 10.9"]
    assert axes.get_ylim()[1] == pytest.approx(1.12 * 2 * 1.12)


def test_without_latency_the_sizes_are_drawn() -> None:
    axes = deployed_forms(FORMS.model_copy(update={"latency": []})).axes
    assert [a.get_title() for a in axes] == ["bytes", "parameters"]


def test_no_panel_of_nothing() -> None:
    forms = BenchRecord(quick=False, forms={"onnx": SIZES["onnx"]}, latency=[])
    assert [a.get_title() for a in deployed_forms(forms).axes] == ["bytes"]


def test_no_form_is_an_error() -> None:
    with pytest.raises(ValueError, match="no form was measured; run l0arm bench RUN"):
        deployed_forms(BenchRecord.model_construct(quick=False, forms={}, latency=[]))


def test_places() -> None:
    assert [place(timed(n, 16, 1.0)) for n in (1, 2)] == [
        "batch 16, 1 thread",
        "batch 16, 2 threads",
    ]
