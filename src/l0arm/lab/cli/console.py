"""Output of the commands: text, JSON lines, progress bars, and errors as one line."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from types import TracebackType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from l0arm import SavedError
from l0arm.distributed import NoBackend, ProcessLost
from l0arm.export import ExportError
from l0arm.lab.cli.streams import check_output
from l0arm.lab.data import DataError
from l0arm.lab.errors import Interrupted, OutputLost, RunFailed, UserError
from l0arm.lab.runs.records import EpochRecord
from l0arm.lab.runs.training import Callback

# Errors of the user, or of the files or packages that are there. Nothing was changed.
REFUSALS = (UserError, DataError, SavedError, ExportError, NoBackend, FileExistsError)


def exit_line(error: Exception) -> tuple[str, int] | None:
    """The line to print and the exit code for an error; None if it is a bug.

    Control characters are replaced: a name from a file must not control the terminal.
    """
    if isinstance(error, REFUSALS) or (isinstance(error, ImportError) and "l0arm[" in str(error)):
        message, code = f"error: {error}", 2
    elif isinstance(error, OSError):
        where = "" if error.filename is None else f": {error.filename}"
        message, code = f"error: {error.strerror or error}{where}", 2
    elif isinstance(error, RunFailed | ProcessLost | OutputLost):
        message, code = f"failed: {error}", 1
    elif isinstance(error, MemoryError) or _out_of_memory(error):
        why = str(error).partition("\n")[0][:200]
        message = f"failed: not enough memory; use a smaller network, batch or input ({why})"
        code = 1
    elif isinstance(error, Interrupted):
        message, code = f"interrupted: {error}", 130
    else:
        return None
    line = " ".join(message.split())
    return "".join(c if c.isprintable() else "?" for c in line), code


def _out_of_memory(error: Exception) -> bool:
    """Torch has an error of its own on a GPU and a plain RuntimeError on a CPU."""
    text = "can't allocate memory"
    return isinstance(error, RuntimeError) and (
        isinstance(error, torch.OutOfMemoryError) or text in str(error)
    )


def say(text: str, *, quiet: bool = False) -> None:
    """Print text for a person. Raises OutputLost if that is not possible."""
    if not quiet:
        Console(soft_wrap=True).print(text, highlight=False, markup=False)
        check_output()


def say_json(value: Any) -> None:
    """Print a value as one line of JSON. Raises OutputLost if that is not possible."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")  # others get escapes
    print(json.dumps(value, ensure_ascii=not unicode), flush=True)
    check_output()


def progress_callback(epochs: int, *, quiet: bool, as_json: bool) -> Watcher:
    """The progress callbacks for this kind of output."""
    if as_json:
        return JsonLines()
    return Watcher() if quiet else Bars(epochs)


class Watcher(Callback):
    """Progress callbacks as a context manager. This base class prints nothing."""

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class JsonLines(Watcher):
    """Every epoch record as a line of JSON, as it is written to the folder of the run."""

    def on_resume(self, epoch: int, damaged: list[str]) -> None:
        say_json({"resumed": epoch, "damaged": damaged})

    def on_epoch(self, record: EpochRecord) -> None:
        say_json(asdict(record))


class Bars(Watcher):
    """A bar for the run and a bar for the epoch. Without a terminal: a line per epoch."""

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

    def on_resume(self, epoch: int, damaged: list[str]) -> None:
        for message in damaged:
            line = f"passed over a checkpoint: {message}"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        self.console.print(f"resumed after epoch {epoch}", highlight=False)
        self.progress.update(self.run, completed=epoch)
        check_output()

    def on_step(self, done: int, total: int, loss: float) -> None:
        now = time.monotonic()
        if now - self.drawn > 0.2 or done == total:  # steps may take a millisecond
            self.drawn = now
            self.progress.update(self.epoch, completed=done, total=total, note=f"loss {loss:.4f}")
            check_output()

    def on_epoch(self, record: EpochRecord) -> None:
        self.progress.update(self.run, completed=record.epoch, note=_note(record))
        if not self.console.is_terminal:
            self.console.print(
                f"epoch {record.epoch}/{self.epochs}: loss {record.train_loss:.4f}, "
                f"{_note(record)}, {record.seconds:.1f} s",
                highlight=False,
                soft_wrap=True,
            )
        check_output()


def _note(record: EpochRecord) -> str:
    note = f"{record.test_accuracy:.2f} % right"
    if record.groups:
        share = record.flops_inference / record.flops_dense
        note += f", {record.prune_rate:.1f} % pruned, {100 * share:.0f} % FLOPs"
    return note
