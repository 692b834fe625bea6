"""Commands that read runs: evaluate, compact, figure, report; and recipes and data."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import l0arm
from l0arm.lab.recipes.recipe import recipe_names
from l0arm.models import MLP

Cli = Callable[[str], Any]
RUN = "runs/mlp-l0-arm/seed-0"


def test_evaluate_gives_what_the_run_recorded(trained: Cli, tmp_path: Path) -> None:
    facts = json.loads(trained(f"evaluate {RUN} --json").out)
    result = json.loads((tmp_path / RUN / "result.json").read_text())
    for key in ("test_accuracy", "architecture", "prune_rate", "prune_rate_realised"):
        assert facts[key] == result[key]
    assert facts["compact_accuracy"] == facts["test_accuracy"]
    assert facts["largest_difference"] < 1e-5


def test_compact_writes_the_small_network(trained: Cli, tmp_path: Path) -> None:
    ended = trained(f"compact {RUN}")
    assert ended.code == 0
    assert f"wrote {RUN}/compact (" in ended.out
    result = json.loads((tmp_path / RUN / "result.json").read_text())
    small = l0arm.load(tmp_path / RUN / "compact", MLP)
    kept = [p.shape[1] for name, p in small.named_parameters() if name.endswith("weight")]
    assert kept == [int(width) for width in result["architecture"].split("-")]


def test_a_dense_run_has_nothing_to_compact(cli: Cli) -> None:
    cli("train mlp-dense {quick} --quiet")
    ended = cli("compact runs/mlp-dense/seed-0")
    assert ended.code == 2
    assert "the run has no gates: there is nothing to compact" in ended.err


@pytest.mark.parametrize("name", ["fig1", "fig2", "fig3", "fig4", "fig5", "inputs"])
def test_every_figure_is_drawn(trained: Cli, tmp_path: Path, name: str) -> None:
    run = "" if name == "fig1" else RUN
    ended = trained(f"figure {name} {run} --out {name}.png")
    assert ended.code == 0, ended.err
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_filters_are_drawn_from_a_lenet(cli: Cli, tmp_path: Path) -> None:
    cli("train lenet5-l0-arm-control {quick} --quiet")
    ended = cli("figure filters runs/lenet5-l0-arm-control/seed-0 --out filters.svg")
    assert ended.code == 0, ended.err
    assert "<svg" in (tmp_path / "filters.svg").read_text()


def test_the_report_is_one_page_with_the_runs_figures(trained: Cli, tmp_path: Path) -> None:
    ended = trained(f"report {RUN} --out page.html")
    assert ended.code == 0, ended.err
    html = (tmp_path / "page.html").read_text()
    result = json.loads((tmp_path / RUN / "result.json").read_text())
    assert result["architecture"] in html
    assert f"{result['test_accuracy']:.2f} %" in html


def test_recipes_lists_them_all(cli: Cli) -> None:
    lines = cli("recipes").out.splitlines()
    assert [line.split()[0] for line in lines] == recipe_names()
    assert all(len(line) <= 80 for line in lines)


def test_data_says_what_it_is(cli: Cli) -> None:
    facts = json.loads(cli("data mnist-mini --json").out)
    assert (facts["train"], facts["test"], facts["image"]) == (8000, 2000, [1, 28, 28])
    assert "8,000 training and 2,000 test images" in cli("data mnist-mini").out
