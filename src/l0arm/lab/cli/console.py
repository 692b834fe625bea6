"""How a verb speaks: to a person, not at all, or in lines of JSON."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from l0arm.lab.runs.records import EpochRecord
from l0arm.lab.runs.training import Observer, Silent


def say(text: str, *, quiet: bool = False) -> None:
    """A line for a person."""
    if not quiet:
        Console(soft_wrap=True).print(text, highlight=False, markup=False)


def say_json(value: Any) -> None:
    """A line for a program."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def observer(epochs: int, *, quiet: bool, as_json: bool) -> Watcher:
    """The observer that suits the mode."""
    if as_json:
        return JsonLines()
    return Mute() if quiet else Bars(epochs)


class Watcher(Observer):
    """An observer with a beginning and an end."""

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Mute(Silent, Watcher):
    """Says nothing."""


class JsonLines(Silent, Watcher):
    """Every record as it is written to the run's folder."""

    def resumed(self, epoch: int, damaged: list[str]) -> None:
        say_json({"resumed": epoch, "damaged": damaged})

    def recorded(self, record: EpochRecord) -> None:
        say_json(asdict(record))


class Bars(Watcher):
    """A bar for the run and one for the epoch; in a pipe, a line for each epoch."""

    def __init__(self, epochs: int) -> None:
        self.console = Console()
        self.progress = Progress(
            TextColumn("{task.description:<5}"),
            BarColumn(bar_width=18),
            TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.epochs, self.drawn = epochs, 0.0
        self.run = self.progress.add_task("run", total=epochs, note="")
        self.epoch = self.progress.add_task("epoch", total=None, note="")

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.stop()

    def resumed(self, epoch: int, damaged: list[str]) -> None:
        for message in damaged:
            self.console.print(f"passed over a damaged checkpoint: {message}", markup=False)
        self.console.print(f"resumed after epoch {epoch}", highlight=False)
        self.progress.update(self.run, completed=epoch)

    def stepped(self, done: int, total: int, loss: float) -> None:
        now = time.monotonic()
        if now - self.drawn > 0.2 or done == total:  # not at every step of a millisecond
            self.drawn = now
            self.progress.update(self.epoch, completed=done, total=total, note=f"loss {loss:.4f}")

    def recorded(self, record: EpochRecord) -> None:
        self.progress.update(self.run, completed=record.epoch, note=_note(record))
        if not self.console.is_terminal:
            self.console.print(
                f"epoch {record.epoch}/{self.epochs}: loss {record.train_loss:.4f}, "
                f"{_note(record)}, {record.seconds:.1f} s",
                highlight=False,
                soft_wrap=True,
            )


def _note(record: EpochRecord) -> str:
    note = f"{record.test_accuracy:.2f} % right"
    if record.groups:
        share = record.flops_inference / record.flops_dense
        note += f", {record.prune_rate:.1f} % pruned, {100 * share:.0f} % FLOPs"
    return note
