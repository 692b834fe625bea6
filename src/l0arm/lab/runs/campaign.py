"""Many runs: missing ones are started, interrupted ones resumed, failed ones tried once more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from l0arm.lab.errors import UserError, nearest
from l0arm.lab.recipes.paper import table_recipes
from l0arm.lab.recipes.recipe import Recipe, load_recipe
from l0arm.lab.runs import records
from l0arm.lab.runs.executors import End, Executor, Handle, LocalProcesses, Work
from l0arm.lab.runs.folder import RunFolder, first_difference
from l0arm.lab.runs.ray_tasks import ray_tasks
from l0arm.lab.runs.stopping import termination_as_interrupt

ATTEMPTS = 2
POLL_SECONDS = 0.5
RESULT_SECONDS = 10.0  # network file systems show new files late


@dataclass
class Job:
    """One run of a campaign."""

    recipe: Recipe
    folder: RunFolder
    settings: tuple[str, ...] = ()  # overrides of the recipe, as table.field=value
    attempts: int = 0
    failure: str = ""

    def command(self, data_dir: Path | None) -> list[str]:
        """The arguments with which a user would start the same run."""
        training = self.recipe.training
        command = ["train", self.recipe.name, "--resume", "--quiet"]
        command += ["--run-dir", str(self.folder.path)]
        command += ["--seed", str(training.seed), "--epochs", str(training.epochs)]
        command += [part for setting in self.settings for part in ("--set", setting)]
        return command + (["--data-dir", str(data_dir)] if data_dir else [])

    def work(self, data_dir: Path | None) -> Work:
        """The run for an executor."""
        threads = self.recipe.training.threads
        return Work(tuple(self.command(data_dir)), self.log, threads)

    @property
    def log(self) -> Path:
        """The output of the run, beside its folder."""
        return self.folder.path.with_suffix(".log")

    def epochs_done(self) -> int:
        """The number of epochs that are recorded."""
        path = self.folder.records
        return len(path.read_bytes().splitlines()) if path.exists() else 0


@dataclass
class Campaign:
    """The runs of a table, and the executor on which they run."""

    jobs: list[Job]
    data_dir: Path | None = None
    executor: Executor = field(default_factory=LocalProcesses)
    running: list[tuple[Job, Handle]] = field(default_factory=list)

    def run(self, slots: int, callback: Callable[[Campaign], None]) -> list[Job]:
        """Run all jobs.

        Args:
            slots: How many jobs run at a time.
            callback: Called after every poll, to show progress.

        Returns:
            The jobs that failed.
        """
        with termination_as_interrupt():
            try:
                self._run(slots, callback)
            finally:
                self._stop()
        return [job for job in self.jobs if not job.folder.finished]

    def _run(self, slots: int, callback: Callable[[Campaign], None]) -> None:
        waiting = [job for job in self.jobs if not job.folder.finished]
        while waiting or self.running:
            while waiting and len(self.running) < slots:
                self._start(waiting.pop(0))
            time.sleep(POLL_SECONDS)
            waiting += list(self._ended())
            callback(self)

    def _start(self, job: Job) -> None:
        job.attempts += 1
        job.folder.path.mkdir(parents=True, exist_ok=True)
        self.running.append((job, self.executor.start(job.work(self.data_dir))))

    def _ended(self) -> Iterator[Job]:
        """Jobs that ended without a result and are tried again."""
        for job, handle in list(self.running):
            end = handle.poll()
            if end is None:
                continue
            self.running.remove((job, handle))
            job.failure = _failure(job, end)
            if job.failure and job.attempts < ATTEMPTS:
                yield job

    def _stop(self) -> None:
        """Ask the running jobs to save and exit, then wait for them."""
        for _, handle in self.running:
            handle.stop()
        for _, handle in self.running:
            handle.wait()


def _failure(job: Job, end: End) -> str:
    """Why the run has no result, or an empty string if it has one."""
    if _appears(job.folder.result, RESULT_SECONDS if end.code == 0 else 0.0):
        return ""
    if end.code == 0:
        return (
            f"it ended well, but {job.folder.result} did not appear; all machines of a cluster "
            "must share the folder of the runs: name one with --runs"
        )
    return end.reason or _last_line(job.log)


def executor_named(name: str, ray_address: str | None = None) -> AbstractContextManager[Executor]:
    """The executor "local" or "ray". It is closed at the end of the context."""
    if name not in ("local", "ray"):
        raise UserError(f"no executor '{name}'; {nearest(name, ('local', 'ray'))}")
    if name == "ray":
        return ray_tasks(ray_address)
    if ray_address:
        raise UserError("--ray-address is of use with --executor ray only")
    return nullcontext(LocalProcesses())


def recipes_of(campaign: str, only: str = "*") -> list[Recipe]:
    """The recipes of "table2" or "table3" whose names match the pattern ``only``."""
    if campaign not in ("table2", "table3"):
        raise UserError(f"nothing to reproduce as '{campaign}'; there are table2, table3")
    chosen = table_recipes(int(campaign.removeprefix("table")))
    chosen = [r for r in chosen if fnmatch(r.name, only)]
    if not chosen:
        raise UserError(f"no recipe of {campaign} matches '{only}'; see `l0arm recipes`")
    return chosen


def jobs_of(
    recipes: Sequence[Recipe],
    runs: Path,
    seeds: int,
    epochs: int | None,
    settings: Sequence[str] = (),
) -> list[Job]:
    """A job for each recipe and seed, ordered by seed."""
    jobs = []
    for seed in range(seeds):
        for recipe in recipes:
            overrides = [*settings, f"training.seed={seed}"]
            overrides += [f"training.epochs={epochs}"] if epochs is not None else []
            path = runs / recipe.name / f"seed-{seed}"
            changed = load_recipe(recipe.name, overrides)
            jobs.append(Job(changed, RunFolder(path), tuple(settings)))
    return jobs


def check_same(job: Job) -> None:
    """Refuse a job in whose folder is a finished run with other settings."""
    there = job.folder
    if there.finished and there.recipe() != job.recipe:
        raise UserError(
            f"{there.path} is a finished run with other settings "
            f"({first_difference(there.recipe(), job.recipe)}); choose another folder with --runs, "
            "or give the settings that it has"
        )


def progress(job: Job) -> records.EpochRecord | None:
    """The last record of a job, if there is one."""
    found = records.read(job.folder.records) if job.epochs_done() else []
    return found[-1] if found else None  # the first line may be incomplete


def _appears(path: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return path.exists()


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else "it ended without a word"
