"""Tables 2 and 3 of the paper beside the results of our runs, as Markdown and as JSON.

A column is one entry of ``COLUMNS``. A row shows the median run in terms of accuracy over the seeds
that finished, as in the paper. A table with missing runs says which ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from l0arm.files import write_text
from l0arm.lab.errors import UserError
from l0arm.lab.recipes.paper import Role, controls_of, role_of, table_recipes
from l0arm.lab.recipes.recipe import PaperRow, Recipe
from l0arm.lab.tables.markdown import grid
from l0arm.lab.tables.outcomes import Outcome, comparable, median_run, outcomes

NONE = "–"
ABSENT = Outcome(seed=-1, finished=False, epochs=0, planned=0)  # in place of a missing run
EXPLANATION = (
    "A row shows the median run in terms of accuracy over the seeds that finished (of an even "
    "number, the lower of the middle two), at its last epoch. Prune rates count as the paper does; "
    "realised is the share of all weights that compaction removes. λ = 0 is the same run "
    "without penalty: what noise alone closes. A † marks a run with fewer epochs, or other "
    "settings, than its recipe."
)


@dataclass(frozen=True)
class Row:
    """One recipe: what the paper prints, the runs of all seeds, and the runs of its control."""

    recipe: str
    network: str
    method: str
    role: Role
    epochs: int  # of the recipe
    paper: PaperRow | None
    runs: tuple[Outcome, ...]
    missing_seeds: tuple[int, ...]
    control: str | None = None
    control_runs: tuple[Outcome, ...] = ()

    @property
    def median(self) -> Outcome | None:
        return median_run(self.runs)

    @property
    def control_median(self) -> Outcome | None:
        return median_run(self.control_runs)

    @property
    def counted(self) -> tuple[int, ...]:
        """The seeds from which the median is taken."""
        return tuple(run.seed for run in comparable(self.runs))

    def remarks(self) -> list[str]:
        """What is missing or differs from the recipe."""
        if not self.runs:
            return ["no run"]
        missing = ", ".join(map(str, self.missing_seeds))
        notes = [f"seeds without a run: {missing}"] if missing else []
        return notes + [note for run in self.runs for note in self._remarks_on(run)]

    def _remarks_on(self, run: Outcome) -> list[str]:
        notes = []
        if not run.finished:
            notes.append(f"seed {run.seed} is not finished: {run.epochs} of {run.planned} epochs")
        if run.planned < self.epochs:
            notes.append(f"seed {run.seed} is short: {run.planned} epochs, not {self.epochs}")
        if run.changed:
            notes.append(f"seed {run.seed} has other settings ({'; '.join(run.changed)})")
        if run.finished and run.seed not in self.counted:
            notes.append(f"seed {run.seed} does not count in the median: others are nearer")
        return notes


@dataclass(frozen=True)
class Table:
    """A table of the paper with the runs there are."""

    number: int
    seeds: int  # wanted
    rows: tuple[Row, ...]

    @property
    def complete(self) -> bool:
        return not any(row.remarks() for row in self.rows)


def table2(root: Path, seeds: int = 5) -> Table:
    """MLP and LeNet-5 on MNIST."""
    return paper_table(2, root, seeds)


def table3(root: Path, seeds: int = 5) -> Table:
    """Wide-ResNet on CIFAR-10 and CIFAR-100."""
    return paper_table(3, root, seeds)


def paper_table(number: int, root: Path, seeds: int = 5) -> Table:
    """Build a table from the runs in ``root/<recipe>/seed-<n>``.

    Args:
        number: 2 or 3.
        root: The folder of all runs.
        seeds: How many seeds a row should have. Every seed found in the folder counts.
    """
    recipes = table_recipes(number)
    if seeds < 1:
        raise UserError(f"a table needs at least one seed; got {seeds}")
    controls = controls_of(recipes)
    runs = {recipe.name: outcomes(root, recipe) for recipe in recipes}
    return Table(number, seeds, tuple(_row(recipe, controls, runs, seeds) for recipe in recipes))


def _row(
    recipe: Recipe, controls: set[str], runs: dict[str, tuple[Outcome, ...]], seeds: int
) -> Row:
    network, _, method = recipe.title.partition(", ")
    found = {run.seed for run in runs[recipe.name]}
    return Row(
        recipe=recipe.name,
        network=network,
        method=recipe.paper.method if recipe.paper else method,
        role=role_of(recipe, controls),
        epochs=recipe.training.epochs,
        paper=recipe.paper,
        runs=runs[recipe.name],
        missing_seeds=tuple(seed for seed in range(seeds) if seed not in found),
        control=recipe.control,
        control_runs=runs.get(recipe.control or "", ()),
    )


def _two(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _mark(row: Row, run: Outcome) -> str:
    return " †" if run.finished and (run.epochs < row.epochs or run.changed) else ""


def _of_paper(cell: Callable[[PaperRow], str]) -> Callable[[Row], str]:
    """A cell from what the paper prints."""
    return lambda row: cell(row.paper) if row.paper else NONE


def _of_median(cell: Callable[[Row, Outcome], str]) -> Callable[[Row], str]:
    """A cell from the median run."""
    return lambda row: cell(row, row.median or ABSENT)


def _of_control(cell: Callable[[Row, Outcome], str]) -> Callable[[Row], str]:
    """A cell from the median run of the control."""
    return lambda row: cell(row, row.control_median or ABSENT)


def _seeds(row: Row) -> str:
    """The seeds in the median, of those that are wanted or found."""
    wanted = len(row.missing_seeds) + len(row.runs)
    return f"{len(row.counted)} of {wanted}" if row.runs else NONE


def _epochs_done(row: Row, run: Outcome) -> str:
    unfinished = "" if run.finished else f" of {run.planned}, running or cut"
    return f"{run.epochs}{unfinished}{_mark(row, run)}"


COLUMNS: dict[str, Callable[[Row], str]] = {  # header: text of a row's cell
    "method": lambda row: row.method,
    "paper: architecture": _of_paper(lambda paper: paper.architecture),
    "paper: prune rate %": _of_paper(lambda paper: _two(paper.prune_rate)),
    "paper: accuracy %": _of_paper(lambda paper: str(paper.accuracy)),
    "architecture": _of_median(lambda row, run: run.architecture or NONE),
    "prune rate %": _of_median(lambda row, run: _two(run.prune_rate)),
    "realised prune rate %": _of_median(lambda row, run: _two(run.prune_rate_realised)),
    "accuracy %": _of_median(lambda row, run: _two(run.accuracy) + _mark(row, run)),
    "λ = 0: prune rate %": _of_control(lambda row, run: _two(run.prune_rate)),
    "λ = 0: accuracy %": _of_control(lambda row, run: _two(run.accuracy) + _mark(row, run)),
    "seeds": _seeds,
    "epochs": _of_median(lambda row, run: str(run.epochs) if run.finished else NONE),
    "s/epoch": _of_median(lambda row, run: _two(run.seconds_per_epoch)),
}
SEED_COLUMNS: dict[str, Callable[[Row, Outcome], str]] = {  # the table of all runs
    "recipe": lambda row, run: row.recipe,
    "seed": lambda row, run: str(run.seed),
    "epochs": _epochs_done,
    "architecture": lambda row, run: run.architecture or NONE,
    "prune rate %": lambda row, run: _two(run.prune_rate),
    "realised prune rate %": lambda row, run: _two(run.prune_rate_realised),
    "accuracy %": lambda row, run: _two(run.accuracy),
    "gates undecided %": lambda row, run: _two(
        None if run.undecided is None else 100 * run.undecided
    ),
    "s/epoch": lambda row, run: _two(run.seconds_per_epoch),
}


def cells(table: Table) -> dict[str, list[list[str]]]:
    """The rows as text under ``COLUMNS``, by network."""
    networks: dict[str, list[list[str]]] = {}
    for row in table.rows:
        networks.setdefault(row.network, []).append([cell(row) for cell in COLUMNS.values()])
    return networks


def missing(table: Table) -> list[str]:
    """What the table lacks, one line per recipe."""
    remarks = ((row.recipe, row.remarks()) for row in table.rows)
    return [f"{recipe}: {'; '.join(notes)}" for recipe, notes in remarks if notes]


def to_markdown(table: Table) -> str:
    """The whole table: one part per network, all runs, and what is missing."""
    parts = [f"# Table {table.number}", EXPLANATION]
    for network, rows in cells(table).items():
        parts += [f"## {network}", "\n".join(grid(list(COLUMNS), rows))]
    runs = [
        [cell(row, run) for cell in SEED_COLUMNS.values()] for row in table.rows for run in row.runs
    ]
    parts += [
        "## All seeds",
        "\n".join(grid(list(SEED_COLUMNS), runs)) if runs else "There are no runs yet.",
    ]
    lines = [f"- {line}" for line in missing(table)]
    parts += ["## What is missing", "\n".join(lines) or "Nothing."]
    return "\n\n".join(parts) + "\n"


def to_json(table: Table) -> str:
    """The contents of the Markdown as values."""

    def values(run: Outcome | None) -> dict[str, Any] | None:
        return asdict(run) if run else None

    rows = [
        {
            **asdict(row),
            "paper": row.paper.model_dump() if row.paper else None,
            "median": values(row.median),
            "median_of_seeds": row.counted,
            "control_median": values(row.control_median),
            "remarks": row.remarks(),
        }
        for row in table.rows
    ]
    for row in rows:
        del row["control_runs"]  # they are in the row of the control
    whole = {"table": table.number, "seeds": table.seeds, "complete": table.complete, "rows": rows}
    return json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_table(table: Table, folder: Path) -> tuple[Path, Path]:
    """Write ``table<n>.md`` and ``table<n>.json`` atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = (folder / f"table{table.number}.md", folder / f"table{table.number}.json")
    for path, text in zip(paths, (to_markdown(table), to_json(table)), strict=True):
        write_text(path, text)
    return paths
