"""Many runs: what is missing is run, what was cut off goes on, what fails is tried once more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from l0arm.lab.recipes.recipe import Recipe, load_recipe
from l0arm.lab.runs import records
from l0arm.lab.runs.errors import UserError
from l0arm.lab.runs.executors import End, Executor, Handle, LocalProcesses, Work
from l0arm.lab.runs.folder import RunFolder, difference
from l0arm.lab.runs.interruption import ends_as_interrupts
from l0arm.lab.tables.tables import table_recipes

ATTEMPTS = 2
POLL_SECONDS = 0.5
RESULT_SECONDS = 10.0  # network file systems show new files late


@dataclass
class Job:
    """One run of a campaign."""

    recipe: Recipe
    folder: RunFolder
    settings: tuple[str, ...] = ()  # table.field=value, other than the recipe's
    attempts: int = 0
    failure: str = ""

    def command(self, data_dir: Path | None) -> list[str]:
        """The same run by hand."""
        training = self.recipe.training
        command = ["train", self.recipe.name, "--resume", "--quiet"]
        command += ["--run-dir", str(self.folder.path)]
        command += ["--seed", str(training.seed), "--epochs", str(training.epochs)]
        command += [part for setting in self.settings for part in ("--set", setting)]
        return command + (["--data-dir", str(data_dir)] if data_dir else [])

    def work(self, data_dir: Path | None) -> Work:
        """The run as an executor sees it."""
        threads = self.recipe.training.threads
        return Work(tuple(self.command(data_dir)), self.log, threads)

    @property
    def log(self) -> Path:
        """What the run says, beside its folder."""
        return self.folder.path.with_suffix(".log")

    def epochs_done(self) -> int:
        """How far the run is."""
        path = self.folder.records
        return len(path.read_bytes().splitlines()) if path.exists() else 0


@dataclass
class Campaign:
    """The runs of a table."""

    jobs: list[Job]
    data_dir: Path | None = None
    executor: Executor = field(default_factory=LocalProcesses)
    running: list[tuple[Job, Handle]] = field(default_factory=list)

    def run(self, slots: int, watch: Callable[[Campaign], None]) -> list[Job]:
        """Run all jobs, at most ``slots`` at a time, and return those that failed."""
        with ends_as_interrupts():
            try:
                self._run(slots, watch)
            finally:
                self._stop()
        return [job for job in self.jobs if not job.folder.finished]

    def _run(self, slots: int, watch: Callable[[Campaign], None]) -> None:
        waiting = [job for job in self.jobs if not job.folder.finished]
        while waiting or self.running:
            while waiting and len(self.running) < slots:
                self._start(waiting.pop(0))
            time.sleep(POLL_SECONDS)
            waiting += list(self._ended())
            watch(self)

    def _start(self, job: Job) -> None:
        job.attempts += 1
        job.folder.path.mkdir(parents=True, exist_ok=True)
        self.running.append((job, self.executor.start(job.work(self.data_dir))))

    def _ended(self) -> Iterator[Job]:
        """Jobs that ended without a result and that may be tried again."""
        for job, handle in list(self.running):
            end = handle.poll()
            if end is None:
                continue
            self.running.remove((job, handle))
            job.failure = _failure(job, end)
            if job.failure and job.attempts < ATTEMPTS:
                yield job

    def _stop(self) -> None:
        """Ask what still runs to save itself, and wait for it."""
        for _, handle in self.running:
            handle.stop()
        for _, handle in self.running:
            handle.wait()


def _failure(job: Job, end: End) -> str:
    """Why the run has no result; nothing if it has one."""
    if _appears(job.folder.result, RESULT_SECONDS if end.code == 0 else 0.0):
        return ""
    if end.code == 0:
        return (
            f"it ended well, but {job.folder.result} did not appear; all machines of a cluster "
            "must share the folder of the runs: name one with --runs"
        )
    return end.reason or _last_line(job.log)


def recipes_of(campaign: str, only: str = "*") -> list[Recipe]:
    """The recipes of "table2" or "table3": its rows, the dense networks, the controls."""
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
    """A job for each recipe and seed, the first seed of all recipes first."""
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
    """Refuse a finished run with other settings in the place of this one."""
    there = job.folder
    if there.finished and there.recipe() != job.recipe:
        raise UserError(
            f"{there.path} is a finished run with other settings "
            f"({difference(there.recipe(), job.recipe)}); choose another folder with --runs, or "
            "give the settings that it has"
        )


def progress(job: Job) -> records.EpochRecord | None:
    """The last record of a job, if it has one."""
    found = records.read(job.folder.records) if job.epochs_done() else []
    return found[-1] if found else None  # the first line may be under way


def _appears(path: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return path.exists()


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else "it ended without a word"
