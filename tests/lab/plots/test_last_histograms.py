"""The gates that runs end with, drawn side by side."""

import pytest

from l0arm.lab.plots import last_histograms
from l0arm.lab.runs.records import EpochRecord, GroupRecord


def ended(*histograms: tuple[int, ...]) -> EpochRecord:
    groups = tuple(GroupRecord(str(n), sum(h), 0, h) for n, h in enumerate(histograms))
    return EpochRecord(6, 600, 0.1, 1.0, 0.0, 90.0, 1.0, 90.0, 1.0, groups=groups)


def test_a_panel_for_each_run_shows_the_share_of_its_gates() -> None:
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
