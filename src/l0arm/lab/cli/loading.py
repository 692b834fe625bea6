"""Data sets with a bar for what takes long, and runs with their networks."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from l0arm.lab.data import Dataset, load_dataset


def load_data(name: str, data_dir: Path | None, *, quiet: bool = False) -> Dataset:
    """A data set, with its progress on the terminal."""
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
