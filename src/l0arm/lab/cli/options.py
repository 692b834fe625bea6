"""Options that several verbs share, each explained once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunsRoot = Annotated[Path, typer.Option("--runs", help="Folder of all runs: RUNS/RECIPE/seed-N.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with the files of the data sets; else cache, mirrors, npm."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
OutsideMethod = Annotated[
    str | None,
    typer.Option("--method", help="Another method, or package.module:factory of your own."),
]
