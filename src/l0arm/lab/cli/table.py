"""``l0arm table``: a table of the paper beside what came out here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from l0arm.lab.cli.console import say
from l0arm.lab.cli.options import Quiet, RunsRoot
from l0arm.lab.runs.errors import UserError
from l0arm.lab.tables import table_text
from l0arm.lab.tables.tables import table2, table3

TABLES = {"table2": table2, "table3": table3}


def table(
    what: Annotated[str, typer.Argument(help="table2 (MNIST) or table3 (CIFAR).")],
    runs: RunsRoot = Path("runs"),
    results: Annotated[Path, typer.Option(help="Where the table goes.")] = Path("results"),
    seeds: Annotated[int, typer.Option(min=1, help="How many runs a row should have.")] = 5,
    quiet: Quiet = False,
) -> None:
    """Write RESULTS/table2.md and .json from the runs there are; say what is missing."""
    markdown, data = write_table(what, runs, results, seeds)
    say(markdown.read_text(encoding="utf-8"), quiet=quiet)
    say(f"wrote {markdown} and {data}", quiet=quiet)


def write_table(what: str, runs: Path, results: Path, seeds: int) -> tuple[Path, Path]:
    """The table as text and as data."""
    if what not in TABLES:
        raise UserError(f"no table '{what}'; there are {', '.join(TABLES)}")
    if not runs.is_dir():
        raise UserError(f"no folder of runs at {runs}; name it with --runs, or train something")
    return table_text.write_table(TABLES[what](runs, seeds), results)
