"""Forms side by side: bars as high as the medians, whiskers as long as the spread."""

from dataclasses import dataclass, field, replace

import pytest

from l0arm.lab.plots import deployed_forms
from l0arm.lab.plots.deployed_forms import place


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Timed:
    threads: int
    batch: int
    ms: dict[str, Spread]


@dataclass(frozen=True)
class Size:
    bytes: int
    parameters: int | None


@dataclass(frozen=True)
class Forms:
    forms: dict[str, Size]
    latency: list[Timed] = field(default_factory=list)
    quick: bool = False


def timed(threads: int, batch: int, scale: float) -> Timed:
    ms = {"dense": Spread(1.12, 0.62, 1.55), "onnx": Spread(0.125, 0.1, 10.95)}
    return Timed(
        threads,
        batch,
        {name: Spread(scale * s.median, scale * s.low, scale * s.high) for name, s in ms.items()},
    )


SIZES = {"dense": Size(152_648, 37_898), "onnx": Size(76_073, None)}
FORMS = Forms(SIZES, [timed(1, 1, 1.0), timed(1, 64, 8.0), timed(1, 256, 32.0), timed(2, 1, 1.0)])


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
    told = [[label.get_text() for label in a.get_xticklabels()] for a in axes]
    assert told[0] == ["dense\n1.12", "onnx\n0.125"]
    assert told[4] == ["dense\n153 k", "onnx\n76.1 k"]
    assert told[5] == ["dense\n37.9 k"]


def test_a_form_has_one_colour_in_all_panels() -> None:
    axes = deployed_forms(FORMS).axes
    colours = [[bar.get_facecolor() for bar in a.patches] for a in axes]
    assert all(panel == colours[0] for panel in colours[:5])
    assert colours[5] == colours[0][:1]
    assert len(set(colours[0])) == 2


def whiskers(panel: int, forms: Forms = FORMS) -> list[tuple[float, float]]:
    collections = deployed_forms(forms).axes[panel].collections
    return [(one.get_segments()[0][0][1], one.get_segments()[0][1][1]) for one in collections]


def test_whiskers_reach_from_the_smallest_to_the_largest() -> None:
    assert whiskers(0)[0] == pytest.approx((0.62, 1.55))
    assert whiskers(4) == []  # sizes have no spread


def test_one_disturbed_round_does_not_flatten_the_bars() -> None:
    """Cut at twice the tallest bar, and told."""
    axes = deployed_forms(FORMS).axes[0]
    assert whiskers(0)[1] == pytest.approx((0.1, 2 * 1.12))
    assert [text.get_text() for text in axes.texts] == ["to 10.9"]
    assert axes.get_ylim()[1] == pytest.approx(1.12 * 2 * 1.12)


def test_without_latency_the_sizes_are_drawn() -> None:
    axes = deployed_forms(replace(FORMS, latency=[])).axes
    assert [a.get_title() for a in axes] == ["bytes", "parameters"]


def test_no_panel_of_nothing() -> None:
    forms = Forms({"onnx": SIZES["onnx"]})
    assert [a.get_title() for a in deployed_forms(forms).axes] == ["bytes"]


def test_no_form_is_an_error() -> None:
    with pytest.raises(ValueError, match="no form was measured; run l0arm bench RUN"):
        deployed_forms(Forms({}))


def test_places() -> None:
    assert [place(timed(n, 16, 1.0)) for n in (1, 2)] == [
        "batch 16, 1 thread",
        "batch 16, 2 threads",
    ]
