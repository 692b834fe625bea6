"""``l0arm table``: a table of the paper beside the results of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from l0arm.lab.cli.console import say
from l0arm.lab.cli.options import Quiet, RunsRoot
from l0arm.lab.errors import UserError
from l0arm.lab.tables import paper_table
from l0arm.lab.tables.architecture_table import write_table1

TABLES = {"table2": paper_table.table2, "table3": paper_table.table3}


def table(
    what: Annotated[
        str,
        typer.Argument(metavar="TABLE", help="table1 (the WRN), table2 (MNIST) or table3 (CIFAR)."),
    ],
    runs: RunsRoot = Path("runs"),
    results: Annotated[Path, typer.Option(help="Folder of the table.")] = Path("results"),
    seeds: Annotated[int, typer.Option(min=1, help="How many runs a row should have.")] = 5,
    quiet: Quiet = False,
) -> None:
    """Write a table of the paper from the runs that exist, and print what is missing.

    Writes table2.md and table2.json (or table1, table3) to the folder of results. Table 1, the
    layers of the Wide-ResNet, needs no runs.

    Examples:

        l0arm table table1
        l0arm table table2
        l0arm table table3 --runs /shared/runs --seeds 1
    """
    if what == "table1":
        markdown, data = write_table1(results)
    else:
        markdown, data = write_table(what, runs, results, seeds)
    say(markdown.read_text(encoding="utf-8"), quiet=quiet)
    say(f"wrote {markdown} and {data}", quiet=quiet)


def write_table(what: str, runs: Path, results: Path, seeds: int) -> tuple[Path, Path]:
    """Write the table as Markdown and JSON."""
    if what not in TABLES:
        raise UserError(f"no table '{what}'; there are table1, {', '.join(TABLES)}")
    if not runs.is_dir():
        raise UserError(f"no folder of runs at {runs}; name it with --runs, or train something")
    return paper_table.write_table(TABLES[what](runs, seeds), results)
