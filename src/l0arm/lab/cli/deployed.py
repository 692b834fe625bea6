"""From a path on the command line to the network it means."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from l0arm.lab.cli.factory import made_by
from l0arm.lab.cli.loading import load_data
from l0arm.lab.runs.deployment import Deployment, of_run, of_saved
from l0arm.lab.runs.errors import UserError
from l0arm.lab.runs.folder import RunFolder

Target = Annotated[
    Path, typer.Argument(metavar="RUN|FOLDER", help="A run, or what `l0arm compact` wrote.")
]
Model = Annotated[
    str | None,
    typer.Option("--model", help="package.module:factory of the original, for other networks."),
]
Size = Annotated[
    str | None, typer.Option("--input", help="Size of one input, as 3,32,32, for other networks.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]


def deployment(
    path: Path, data_dir: Path | None, model: str | None, size: str | None, *, quiet: bool
) -> Deployment:
    """The networks that a run or a saved folder stands for."""
    if (path / "recipe.json").is_file():
        folder = RunFolder(path)
        return of_run(folder, load_data(folder.recipe().data.name, data_dir, quiet=quiet))
    if not (path / "l0arm.json").is_file():
        raise UserError(f"{path} is neither the folder of a run nor that of a saved network")
    factory = None if model is None else partial(made_by, model)
    return of_saved(path, factory, None if size is None else _size(size))


def _size(told: str) -> list[int]:
    try:
        size = [int(part) for part in told.split(",")]
    except ValueError:
        size = []
    if not size or min(size) < 1:
        raise UserError(f"--input {told}: write the size of one input as 3,32,32")
    return size


def check_absent(paths: list[Path], *, force: bool) -> None:
    """Refuse to write over files, before anything is measured."""
    there = [str(path) for path in paths if path.exists()]
    if there and not force:
        raise UserError(f"{there[0]} exists; choose another place with --out, or --force")
