"""Tables 2 and 3: their rows, what is missing, and the two ways of writing them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from l0arm.lab.errors import UserError
from l0arm.lab.recipes.paper import table_recipes
from l0arm.lab.recipes.recipe import load_recipe
from l0arm.lab.tables.paper_table import (
    COLUMNS,
    SEED_COLUMNS,
    Row,
    Table,
    cells,
    missing,
    paper_table,
    table2,
    table3,
    to_json,
    to_markdown,
    write_table,
)

Finish = Callable[..., None]


@pytest.fixture
def finish(tmp_path: Path) -> Finish:
    """Write a finished run: recipe.json and result.json."""

    def make(recipe: str, seed: int, accuracy: float, *overrides: str, **figures: Any) -> None:
        folder = tmp_path / recipe / f"seed-{seed}"
        folder.mkdir(parents=True)
        made = load_recipe(recipe, [f"training.seed={seed}", *overrides])
        result = {
            "epochs": made.training.epochs,
            "test_accuracy": accuracy,
            "prune_rate": 80.0 + seed,
            "prune_rate_realised": 70.0 + seed,
            "architecture": f"{seed}-2-3",
            "undecided": 0.125,
            "seconds_per_epoch": 7.5,
            "gates": {},
        } | figures
        (folder / "recipe.json").write_text(json.dumps(made.model_dump()))
        (folder / "result.json").write_text(json.dumps(result))

    return make


def row_of(table: Table, recipe: str) -> Row:
    return next(row for row in table.rows if row.recipe == recipe)


def grids(markdown: str) -> dict[str, list[list[str]]]:
    """The tables of a Markdown text by the heading above them, header and rule left out."""
    found: dict[str, list[list[str]]] = {}
    heading = ""
    for line in markdown.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("|"):
            found.setdefault(heading, []).append([c.strip() for c in line.strip("|").split("|")])
    return {heading: lines[2:] for heading, lines in found.items()}


def test_figures_of_the_paper_stand_in_their_rows(tmp_path: Path) -> None:
    (arm,) = [row for row in table2(tmp_path).rows if row.recipe == "lenet5-l0-arm"]
    assert (arm.network, arm.method) == ("LeNet-5 20-50-800-500", "L0-ARM (λ = 0.1/N)")
    assert arm.paper is not None
    figures = (arm.paper.architecture, arm.paper.prune_rate, arm.paper.accuracy)
    assert figures == ("20-16-32-257", 95.52, 99.1)
    roles = {row.recipe: row.role for row in table3(tmp_path).rows}
    assert roles["wrn-cifar10-dropout"] == "dense"
    assert roles["wrn-cifar10-l0-ar-control"] == "control"
    assert roles["wrn-cifar10-l0-ar-002"] == "method"


def test_a_row_is_its_median_run_with_the_control_beside(tmp_path: Path, finish: Finish) -> None:
    for seed, accuracy in enumerate((98.4, 98.1, 98.2, 98.3, 98.0)):
        finish("mlp-l0-arm", seed, accuracy)
    finish("mlp-l0-arm-control", 0, 97.5, prune_rate=12.25)
    lines = grids(to_markdown(table2(tmp_path)))["MLP 784-300-100"]
    (line,) = [line for line in lines if line[0] == "L0-ARM (λ = 0.1/N)"]
    assert dict(zip(COLUMNS, line, strict=True)) == {
        "method": "L0-ARM (λ = 0.1/N)",
        "paper: architecture": "143-153-78",
        "paper: prune rate %": "87.00",
        "paper: accuracy %": "98.3",
        "architecture": "2-2-3",
        "prune rate %": "82.00",
        "realised prune rate %": "72.00",
        "accuracy %": "98.20",
        "λ = 0: prune rate %": "12.25",
        "λ = 0: accuracy %": "97.50",
        "seeds": "5 of 5",
        "epochs": "200",
        "s/epoch": "7.50",
    }
    separate = next(line for line in lines if line[0] == "L0-ARM (λ sep.)")
    assert separate[8:10] == ["12.25", "97.50"]  # one control for both
    assert separate[4:8] == ["–"] * 4


def test_all_seeds_are_listed(tmp_path: Path, finish: Finish) -> None:
    finish("mlp-l0-arm", 0, 98.4)
    finish("mlp-l0-arm", 7, 98.1)
    lines = grids(to_markdown(table2(tmp_path)))["All seeds"]
    assert [dict(zip(SEED_COLUMNS, line, strict=True))["seed"] for line in lines] == ["0", "7"]
    assert lines[1] == [
        "mlp-l0-arm", "7", "200", "7-2-3", "87.00", "77.00", "98.10", "12.50", "7.50",
    ]  # fmt: skip


def test_an_empty_table_is_a_table_that_says_so(tmp_path: Path) -> None:
    table = table2(tmp_path, seeds=1)
    text = to_markdown(table)
    assert not table.complete
    assert "There are no runs yet." in text
    assert missing(table) == [f"{row.recipe}: no run" for row in table.rows]
    assert all(line in text for line in missing(table))


def test_what_is_missing_is_said(tmp_path: Path, finish: Finish) -> None:
    finish("mlp-l0-arm", 1, 98.4)
    started = tmp_path / "mlp-l0-arm" / "seed-2"
    started.mkdir()
    settings = load_recipe("mlp-l0-arm", ["training.seed=2"]).model_dump()
    (started / "recipe.json").write_text(json.dumps(settings))
    table = table2(tmp_path, seeds=4)
    row = row_of(table, "mlp-l0-arm")
    assert row.missing_seeds == (0, 3)
    assert row.counted == (1,)
    assert row.remarks() == [
        "seeds without a run: 0, 3",
        "seed 2 is not finished: 0 of 200 epochs",
    ]
    rows = {row[0]: row for row in cells(table)["MLP 784-300-100"]}
    assert rows["L0-ARM (λ = 0.1/N)"][10] == "1 of 4"


def test_short_and_changed_runs_are_marked(tmp_path: Path, finish: Finish) -> None:
    finish("mlp-l0-arm", 0, 98.4, "training.epochs=3")
    finish("mlp-l0-ar", 0, 98.4, "method.lam=0.2")
    finish("mlp-l0-ar", 1, 98.2)
    finish("mlp-dense", 0, 98.5)
    finish("mlp-l0-arm-control", 0, 97.5, "training.epochs=5")
    table = table2(tmp_path, seeds=1)
    lines = {line[0]: line for line in cells(table)["MLP 784-300-100"]}
    accuracies = {method: line[7] for method, line in lines.items() if line[7] != "–"}
    assert accuracies == {
        "dense": "98.50",
        "L0-AR (λ = 0.1/N)": "98.20",
        "L0-ARM (λ = 0.1/N)": "98.40 †",
        "L0-ARM (λ = 0: the control)": "97.50 †",
    }
    assert lines["L0-ARM (λ = 0.1/N)"][9] == "97.50 †"
    assert row_of(table, "mlp-l0-arm").remarks() == ["seed 0 is short: 3 epochs, not 200"]
    assert row_of(table, "mlp-l0-ar").remarks() == [
        "seed 0 has other settings (method.lam: 0.2, not 0.1)",
        "seed 0 does not count in the median: others are nearer",
    ]
    assert row_of(table, "mlp-dense").remarks() == []


def test_a_table_with_every_run_is_complete(tmp_path: Path, finish: Finish) -> None:
    for recipe in table_recipes(2):
        finish(recipe.name, 0, 98.0)
    table = table2(tmp_path, seeds=1)
    assert table.complete
    assert to_markdown(table).endswith("## What is missing\n\nNothing.\n")
    assert not table2(tmp_path, seeds=2).complete


def test_json_says_what_the_markdown_says(tmp_path: Path, finish: Finish) -> None:
    finish("mlp-l0-arm", 0, 98.4)
    finish("mlp-l0-arm", 1, 98.2)
    finish("mlp-l0-arm-control", 0, 97.5)
    written = json.loads(to_json(table2(tmp_path, seeds=3)))
    assert (written["table"], written["seeds"], written["complete"]) == (2, 3, False)
    row = next(row for row in written["rows"] if row["recipe"] == "mlp-l0-arm")
    assert row["paper"]["prune_rate"] == 87.0
    assert (row["median"]["seed"], row["median"]["accuracy"]) == (1, 98.2)
    assert row["median_of_seeds"] == [0, 1]
    assert [run["seed"] for run in row["runs"]] == [0, 1]
    assert (row["control"], row["control_median"]["accuracy"]) == ("mlp-l0-arm-control", 97.5)
    assert (row["missing_seeds"], row["remarks"]) == ([2], ["seeds without a run: 2"])
    assert next(r for r in written["rows"] if r["recipe"] == "mlp-dense")["median"] is None


def test_both_files_are_written(tmp_path: Path) -> None:
    table = table2(tmp_path)
    markdown, values = write_table(table, tmp_path / "results")
    assert (markdown.name, values.name) == ("table2.md", "table2.json")
    assert markdown.read_text(encoding="utf-8") == to_markdown(table)
    assert values.read_text(encoding="utf-8") == to_json(table)


def test_tables_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no recipe belongs to table 4; there are 2 and 3"):
        paper_table(4, tmp_path)
    with pytest.raises(UserError, match="at least one seed; got 0"):
        table2(tmp_path, seeds=0)
