"""``l0arm reproduce``: all runs of a table of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from l0arm.lab.cli.console import say
from l0arm.lab.cli.options import DataDir, Quiet, RunsRoot, load_data
from l0arm.lab.cli.table import write_table
from l0arm.lab.errors import RunFailed
from l0arm.lab.runs.campaign import (
    Campaign,
    Job,
    check_same,
    executor_named,
    jobs_of,
    progress,
    recipes_of,
)
from l0arm.lab.runs.folder import RunFolder, archive


def reproduce(
    what: Annotated[str, typer.Argument(metavar="TABLE", help="table2 (MNIST) or table3 (CIFAR).")],
    data_dir: DataDir = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs per row. The paper has 5.")] = 5,
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's 200.")] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at the same time, one core each. Default: all cores."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of all runs."),
    ] = None,
    only: Annotated[str, typer.Option(help="Only recipes that match, as 'mlp-*'.")] = "*",
    runs: RunsRoot = Path("runs"),
    results: Annotated[Path, typer.Option(help="Folder of the table.")] = Path("results"),
    executor: Annotated[
        str,
        typer.Option(metavar="local|ray", help="Processes of this machine, or tasks of Ray."),
    ] = "local",
    ray_address: Annotated[
        str | None,
        typer.Option(help="The Ray cluster. Default: RAY_ADDRESS, or a cluster of this machine."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run everything that a table of the paper needs, and write the table.

    Starts the runs that are missing and resumes those that were interrupted. Interrupt it at any
    time: the runs save themselves, and the same command continues.

    Writes the runs, the table (a partial one says what is missing), and small copies of finished
    runs to RESULTS/runs. A copy of a run with other settings is not replaced.

    Examples:

        l0arm reproduce table2 --data-dir ~/mnist --seeds 1 --jobs 2
        l0arm reproduce table3 --set training.device=cuda --jobs 1
        l0arm reproduce table2 --data-dir /data --runs /shared/runs --executor ray
    """
    runs, data_dir = runs.absolute(), data_dir and data_dir.absolute()
    todo = jobs_of(recipes_of(what, only), runs, seeds, epochs, set_ or ())
    for job in todo:
        check_same(job)
    with executor_named(executor, ray_address) as place:
        for name in sorted({job.recipe.data.name for job in todo}):
            load_data(name, data_dir, quiet=quiet)  # report a missing file before any run
        campaign = Campaign(todo, data_dir, place)
        try:
            failed = _watched(campaign, jobs or place.slots(), quiet)
        finally:
            _archive(campaign, runs, results, quiet)
            written = write_table(what, runs, results, seeds)
    say(f"wrote {' and '.join(str(path) for path in written)}", quiet=quiet)
    if failed:
        first = failed[0]
        raise RunFailed(
            f"{len(failed)} of {len(campaign.jobs)} runs did not finish; the first is "
            f"{first.folder.path}: {first.failure}"
        )


def _kept(job: Job, runs: Path, results: Path) -> Path:
    """The folder for the small copy of a finished run."""
    return results / "runs" / job.folder.path.relative_to(runs)


def _archive(campaign: Campaign, runs: Path, results: Path, quiet: bool) -> None:
    """Copy finished runs. A copy of a run with other settings is not replaced."""
    others = []
    for job in campaign.jobs:
        if job.folder.finished and job.folder.records.exists():  # otherwise it is a copy itself
            copy = RunFolder(_kept(job, runs, results))
            if copy.finished and copy.recipe() != job.recipe:
                others.append(copy.path)
            else:
                archive(job.folder, copy.path)
    if others:
        say(
            f"{len(others)} finished runs are not copied to {results / 'runs'}, where runs with "
            f"other settings are kept, such as {others[0]}; --results names another folder",
            quiet=quiet,
        )


def _watched(campaign: Campaign, jobs: int, quiet: bool) -> list[Job]:
    console = Console()
    if quiet or not console.is_terminal:
        return campaign.run(jobs, _Lines(campaign, quiet))
    with Live(_overview(campaign), console=console, refresh_per_second=1) as live:
        return campaign.run(jobs, lambda c: live.update(_overview(c)))


class _Lines:
    """Progress without a terminal: a line for each run that ends."""

    def __init__(self, campaign: Campaign, quiet: bool) -> None:
        self.quiet = quiet
        self.done = sum(job.folder.finished for job in campaign.jobs)
        say(f"{self.done} of {len(campaign.jobs)} runs are there", quiet=quiet)

    def __call__(self, campaign: Campaign) -> None:
        done = sum(job.folder.finished for job in campaign.jobs)
        if done > self.done:
            self.done = done
            say(f"{done} of {len(campaign.jobs)} runs done", quiet=self.quiet)


def _overview(campaign: Campaign) -> Table:
    """The runs in progress, and how many are done."""
    done = sum(job.folder.finished for job in campaign.jobs)
    table = Table(title=f"{done} of {len(campaign.jobs)} runs done", title_justify="left")
    for column in ("run", "epoch", "% right", "% pruned", "s / epoch"):
        table.add_column(column, justify="left" if column == "run" else "right")
    for job, _ in campaign.running:
        last = progress(job)
        name = f"{job.recipe.name} seed {job.recipe.training.seed}"
        figures = ("0", "", "", "")
        if last is not None:
            figures = (
                f"{last.epoch}/{job.recipe.training.epochs}",
                f"{last.test_accuracy:.2f}",
                f"{last.prune_rate:.1f}",
                f"{last.seconds:.1f}",
            )
        table.add_row(name, *figures)
    return table
