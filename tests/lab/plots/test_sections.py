"""Sections of runs: the numbers of the last epoch, and only pictures that the run has data for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from l0arm.lab.plots.report import Layer, Section, page
from l0arm.lab.plots.sections import FACTS, Filters, Inputs, Run, comparison_section, run_section
from l0arm.lab.tables.bench_record import BenchRecord, FormRecord


@pytest.fixture(scope="module")
def runs(gated_run: Callable[..., Any], dense_run: list[Any]) -> list[Run]:
    return [
        Run("LeNet-5", "L0-ARM, seed 0", gated_run(5), planned=5, settings={"lam": "0.1"}),
        Run("LeNet-5", "dense, seed 0", dense_run, planned=5),
        Run("MLP", "L0-AR, seed 0", gated_run(2, passes=1, dense=5e5), planned=200),
        Run("MLP", "L0-AR, seed 1", [], planned=200),
    ]


@pytest.fixture(scope="module")
def sections(runs: list[Run]) -> list[Section]:
    return [run_section(run) for run in runs]


@pytest.fixture(scope="module")
def comparison(runs: list[Run]) -> Section:
    return comparison_section(runs)


def test_facts_are_those_of_the_last_epoch(sections: list[Section]) -> None:
    assert dict(sections[0].facts) == {
        "test accuracy": "98.00 %",
        "prune rate (as the paper counts)": "50.00 %",
        "prune rate (realised)": "51.00 %",
        "architecture": "5-20",
        "expected inference FLOPs, of dense": "50.0 % of 4 MFLOPs",
        "gates undecided": "0.0 %",
        "epochs": "5 of 5",
        "time per epoch": "2.0 s",
    }


def test_a_dense_run_claims_nothing_about_gates(sections: list[Section]) -> None:
    section = sections[1]
    assert list(section.facts.values()) == [
        "98.00 %", "–", "–", "full model", "–", "–", "3 of 5", "2.0 s",
    ]  # fmt: skip
    assert (list(section.layers), list(section.pictures)) == ([], [])


def test_a_run_that_is_not_finished_says_so(sections: list[Section]) -> None:
    texts = [list(section.text) for section in sections]
    assert texts == [[], *[["This run is not finished."]] * 3]
    assert sections[3].facts["epochs"] == "0 of 200"


def test_gates_that_did_not_decide_and_a_collapse_are_flagged(
    gated_run: Callable[..., Any], sections: list[Section]
) -> None:
    assert sections[0].warned == {}
    epochs = gated_run(5)
    epochs[-1] = replace(epochs[-1], undecided=0.3, test_accuracy=16.0)
    section = run_section(Run("LeNet-5", "undecided", epochs, planned=5))
    assert section.warned["gates undecided"].startswith("The gates did not decide")
    assert section.warned["test accuracy"] == "It was 96.40 % after epoch 4."
    html = page("Runs", [section])
    assert html.count('class="warned"') == 2
    assert "<dd>16.00 %</dd><dd>It was 96.40 % after epoch 4.</dd>" in html


def test_structure_and_settings_come_from_the_run(sections: list[Section]) -> None:
    section = sections[0]
    assert list(section.layers) == [Layer("conv1", 5, 10), Layer("fc1", 20, 20)]
    assert section.settings == {"lam": "0.1"}
    assert [picture.alt.partition(" from")[0] for picture in section.pictures] == [
        "Histograms of g(φ) of all gates",
        "Histograms of g(φ) by group",
    ]


def test_pixels_and_filters_are_drawn_when_given(gated_run: Callable[..., Any]) -> None:
    run = Run(
        "MLP",
        "L0-ARM",
        gated_run(1),
        planned=1,
        inputs=Inputs([0.9, 0.1, 0.8, 0.2], shape=(2, 2)),
        filters=Filters(np.ones((3, 1, 2, 2)), [0.9, 0.9, 0.1], called="neurons"),
    )
    alts = [picture.alt for picture in run_section(run).pictures]
    assert alts[0] == "The 2 of 4 input pixels that MLP, L0-ARM keeps"
    assert alts[1] == "The 2 of 3 first-layer neurons that MLP, L0-ARM keeps"
    assert len(alts) == 4


def test_forms_that_were_measured_are_drawn_and_listed(dense_run: list[Any]) -> None:
    spread = {"median": 1.5, "low": 1.0, "high": 2.0}
    measured = BenchRecord.model_validate(
        {
            "quick": True,
            "forms": {"dense": {"bytes": 4096, "parameters": 1024}, "int8": {"bytes": 1100}},
            "latency": [{"threads": 1, "batch": 16, "ms": {"dense": spread, "int8": spread}}],
        }
    )
    section = run_section(Run("MLP", "dense", dense_run, planned=3, forms=measured))
    (picture,) = section.pictures
    assert "latency, bytes and parameters of MLP, dense as dense, int8" in picture.alt
    assert picture.caption.startswith("A quick run, not for comparison. Latency of the forms")
    titles = [axes.get_title() for axes in picture.figure.axes]
    assert titles == ["batch 16, 1 thread", "bytes", "parameters"]
    (grid,) = section.tables
    assert tuple(grid.header) == ("form", "parameters", "bytes", "ms, batch 16, 1 thread")
    assert [tuple(row) for row in grid.rows] == [
        ("dense", "1,024", "4,096", "1.500 [1.000–2.000]"),
        ("int8", "–", "1,100", "1.500 [1.000–2.000]"),
    ]


def test_a_full_measurement_says_nothing_of_quick(dense_run: list[Any]) -> None:
    forms = BenchRecord(quick=False, forms={"dense": FormRecord(bytes=1)}, latency=[])
    (picture,) = run_section(Run("MLP", "dense", dense_run, planned=3, forms=forms)).pictures
    assert picture.caption.startswith("Latency of the forms")


def test_the_comparison_has_a_row_for_each_run(runs: list[Run], comparison: Section) -> None:
    (grid,) = comparison.tables
    assert tuple(grid.header) == ("run", *FACTS)
    assert [row[0] for row in grid.rows] == [f"{run.network}, {run.label}" for run in runs]
    assert [len(row) for row in grid.rows] == [len(grid.header)] * 4
    assert [row[1] for row in grid.rows] == ["98.00 %", "98.00 %", "98.00 %", "–"]


def test_each_network_has_its_own_curves(comparison: Section) -> None:
    alts = [picture.alt for picture in comparison.pictures]
    assert alts == [
        "Prune rate and expected FLOPs by epoch of LeNet-5: L0-ARM, seed 0; dense, seed 0",
        "Test accuracy by epoch of LeNet-5: L0-ARM, seed 0; dense, seed 0",
        "Prune rate and expected FLOPs by epoch of MLP: L0-AR, seed 0; L0-AR, seed 1",
        "Test accuracy by epoch of MLP: L0-AR, seed 0; L0-AR, seed 1",
    ]


def test_runs_that_have_not_begun_have_no_pictures(runs: list[Run]) -> None:
    assert list(comparison_section(runs[3:]).pictures) == []


def test_sections_make_a_page(sections: list[Section]) -> None:
    html = page("Runs", [replace(sections[0], pictures=sections[0].pictures[:1])])
    assert "5 of 10" in html
    assert "98.00 %" in html
