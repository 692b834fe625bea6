"""Options that several commands share, and the data sets and networks that they name."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from l0arm.lab.cli.limits import check_size, whole_numbers
from l0arm.lab.cli.outside import made_by
from l0arm.lab.data import Dataset, load_dataset
from l0arm.lab.errors import UserError, shortened
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.trained import EXAMPLES, Deployment, deployment_of_run, deployment_of_saved

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
RunsRoot = Annotated[Path, typer.Option("--runs", help="Folder of all runs: RUNS/RECIPE/seed-N.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the files of the data sets. Without it: cache, mirrors, packages."
    ),
]
OutsideMethod = Annotated[
    str | None,
    typer.Option("--method", help="package.module:factory of the run's method, if it is your own."),
]
Target = Annotated[
    Path, typer.Argument(metavar="RUN|FOLDER", help="A run, or a folder that compact wrote.")
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", help="package.module:factory of the original, for a network of your own."
    ),
]
Size = Annotated[
    str | None,
    typer.Option("--input", help="Size of one input, as 3,32,32, for a network of your own."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]


def load_data(name: str, data_dir: Path | None, *, quiet: bool = False) -> Dataset:
    """Load a data set, with a progress bar on the terminal."""
    console = Console(stderr=True)
    silent = quiet or not sys.stderr.isatty()
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=18), DownloadColumn())
    with Progress(*columns, console=console, disable=silent, transient=True) as progress:
        tasks = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        return load_dataset(name, data_dir, progress=show)


def deployment(
    path: Path, data_dir: Path | None, model: str | None, size: str | None, *, quiet: bool
) -> Deployment:
    """The dense and the compact network of a run or of a saved folder."""
    if (path / "recipe.json").is_file():
        folder = RunFolder(path)
        data = load_data(folder.recipe().data.name, data_dir, quiet=quiet)
        return deployment_of_run(folder, data)
    if not (path / "l0arm.json").is_file():
        raise UserError(f"{path} is neither the folder of a run nor that of a saved network")
    factory = None if model is None else partial(made_by, model)
    return deployment_of_saved(path, factory, None if size is None else _size(size))


def _size(text: str) -> list[int]:
    size = whole_numbers(text)
    if not size:
        raise UserError(f"--input {shortened(text)}: write the size of one input as 3,32,32")
    check_size("--input", text, [EXAMPLES, *size])
    return size


def check_absent(paths: list[Path], *, force: bool) -> None:
    """Refuse to overwrite files. Called before anything is measured."""
    existing = [str(path) for path in paths if path.exists()]
    if existing and not force:
        raise UserError(f"{existing[0]} exists; choose another place with --out, or --force")
