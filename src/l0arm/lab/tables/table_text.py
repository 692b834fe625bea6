"""A table as Markdown for people, as JSON for programs, and as cells for a page."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from l0arm.files import write_text
from l0arm.lab.tables.markdown import grid
from l0arm.lab.tables.outcomes import Outcome
from l0arm.lab.tables.tables import Row, Table

NONE = "–"
ABSENT = Outcome(seed=-1, finished=False, epochs=0, planned=0)  # stands for a run that is not there
HEADER = (
    "method",
    "paper: architecture",
    "paper: prune rate %",
    "paper: accuracy %",
    "architecture",
    "prune rate %",
    "realised prune rate %",
    "accuracy %",
    "λ = 0: prune rate %",
    "λ = 0: accuracy %",
    "seeds",
    "epochs",
    "s/epoch",
)
SEEDS_HEADER = (
    "recipe",
    "seed",
    "epochs",
    "architecture",
    "prune rate %",
    "realised prune rate %",
    "accuracy %",
    "gates undecided %",
    "s/epoch",
)
EXPLANATION = (
    "A row shows the median run in terms of accuracy over the seeds that finished (of an even "
    "number, the lower of the middle two), at its last epoch. Prune rates count as the paper does; "
    "realised is the share of all weights that compaction removes. λ = 0 is the same run "
    "without penalty: what noise alone closes. A † marks a run with fewer epochs, or other "
    "settings, than its recipe."
)


def cells(table: Table) -> dict[str, list[list[str]]]:
    """The rows as text under HEADER, by network."""
    networks: dict[str, list[list[str]]] = {}
    for row in table.rows:
        networks.setdefault(row.network, []).append(_row(row))
    return networks


def seed_cells(table: Table) -> list[list[str]]:
    """Every run as text under SEEDS_HEADER, finished or not."""
    return [_seed(row, run) for row in table.rows for run in row.runs]


def missing(table: Table) -> list[str]:
    """What the table lacks, a line for each recipe."""
    remarks = ((row.recipe, row.remarks()) for row in table.rows)
    return [f"{recipe}: {'; '.join(notes)}" for recipe, notes in remarks if notes]


def to_markdown(table: Table) -> str:
    """The whole table: a part for each network, all seeds, and what is missing."""
    parts = [f"# Table {table.number}", EXPLANATION]
    for network, rows in cells(table).items():
        parts += [f"## {network}", "\n".join(grid(HEADER, rows))]
    runs = seed_cells(table)
    parts += [
        "## All seeds",
        "\n".join(grid(SEEDS_HEADER, runs)) if runs else "There are no runs yet.",
    ]
    lines = [f"- {line}" for line in missing(table)]
    parts += ["## What is missing", "\n".join(lines) or "Nothing."]
    return "\n\n".join(parts) + "\n"


def to_json(table: Table) -> str:
    """Everything that the Markdown says, as values."""
    rows = [
        {
            **asdict(row),
            "paper": row.paper.model_dump() if row.paper else None,
            "median": _plain(row.median),
            "median_of_seeds": row.counted,
            "control_median": _plain(row.control_median),
            "remarks": row.remarks(),
        }
        for row in table.rows
    ]
    for values in rows:
        del values["control_runs"]  # they are in the row of the control
    whole = {"table": table.number, "seeds": table.seeds, "complete": table.complete, "rows": rows}
    return json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_table(table: Table, folder: Path) -> tuple[Path, Path]:
    """Write ``table<n>.md`` and ``table<n>.json``, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = (folder / f"table{table.number}.md", folder / f"table{table.number}.json")
    for path, text in zip(paths, (to_markdown(table), to_json(table)), strict=True):
        write_text(path, text)
    return paths


def _plain(run: Outcome | None) -> dict[str, Any] | None:
    return asdict(run) if run else None


def _row(row: Row) -> list[str]:
    paper, run, control = row.paper, row.median or ABSENT, row.control_median or ABSENT
    return [
        row.method,
        paper.architecture if paper else NONE,
        _two(paper.prune_rate if paper else None),
        str(paper.accuracy) if paper else NONE,
        run.architecture or NONE,
        _two(run.prune_rate),
        _two(run.prune_rate_realised),
        _two(run.accuracy) + _mark(row, run),
        _two(control.prune_rate),
        _two(control.accuracy) + _mark(row, control),
        f"{len(row.counted)} of {len(row.counted) + _lacking(row)}" if row.runs else NONE,
        str(run.epochs) if run.finished else NONE,
        _two(run.seconds_per_epoch),
    ]


def _lacking(row: Row) -> int:
    """Seeds that are asked for, or there, but not in the median."""
    return len(row.missing_seeds) + len(row.runs) - len(row.counted)


def _mark(row: Row, run: Outcome) -> str:
    return " †" if run.finished and (run.epochs < row.epochs or run.changed) else ""


def _seed(row: Row, run: Outcome) -> list[str]:
    state = (
        f"{run.epochs} of {run.planned}, running or cut" if not run.finished else f"{run.epochs}"
    )
    undecided = None if run.undecided is None else 100 * run.undecided
    return [
        row.recipe,
        f"{run.seed}",
        state + _mark(row, run),
        run.architecture or NONE,
        _two(run.prune_rate),
        _two(run.prune_rate_realised),
        _two(run.accuracy),
        _two(undecided),
        _two(run.seconds_per_epoch),
    ]


def _two(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"
