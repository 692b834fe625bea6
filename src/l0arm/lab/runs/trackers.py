"""Experiment trackers: TensorBoard and Weights & Biases get a copy of every epoch record.

The records in the folder of the run are complete without them. A tracker whose package is missing
is refused at the start. One that fails later is dropped with a warning, and the run continues.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from l0arm.lab.errors import UserError, nearest
from l0arm.lab.runs.records import EpochRecord, scalars


class TrackerWarning(UserWarning):
    """A tracker failed and gets no more records."""


class Tracker(Protocol):
    """Gets every epoch record of a run."""

    def record(self, record: EpochRecord) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is created from."""

    folder: Path
    name: str
    settings: dict[str, Any]
    epoch: int  # epochs done, more than 0 when resumed


class TensorBoard:
    """Writes event files. Events after the epoch that a run resumes from are purged."""

    def __init__(self, run: TrackedRun) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise UserError(
                "TensorBoard is not installed; pip install 'l0arm[tensorboard]', or leave out "
                "--tensorboard"
            ) from None
        self._writer = SummaryWriter(str(run.folder / "events"), purge_step=run.epoch + 1)

    def record(self, record: EpochRecord) -> None:
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record.epoch)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbRun:
    """An offline W&B run in the folder of the run. `wandb sync` uploads it.

    A resumed run becomes a second W&B run that starts at its epoch.
    """

    def __init__(self, run: TrackedRun) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError(
                "W&B is not installed; pip install 'l0arm[wandb]', or leave out --tracker wandb"
            ) from None
        resumed = f", resumed after epoch {run.epoch}" if run.epoch else ""
        self._run = wandb.init(
            project="l0arm",
            name=f"{run.name}{resumed}",
            dir=str(run.folder),
            config=run.settings,
            mode="offline",
        )

    def record(self, record: EpochRecord) -> None:
        self._run.log(scalars(record), step=record.epoch)

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandbRun,
}


class Trackers:
    """Several trackers. An exception in one of them does not end the run."""

    def __init__(self, trackers: dict[str, Tracker]) -> None:
        self._trackers = trackers

    def record(self, record: EpochRecord) -> None:
        """Pass a record to all trackers."""
        for name, tracker in list(self._trackers.items()):
            self._attempt(name, partial(tracker.record, record))

    def close(self) -> None:
        """Close all trackers."""
        for name, tracker in list(self._trackers.items()):
            self._attempt(name, tracker.close)

    def _attempt(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # whatever another package raises
            del self._trackers[name]
            warnings.warn(
                f"the tracker '{name}' failed ({type(error).__name__}: {error}) and is left out "
                "from here on; the run goes on, its own records are complete",
                TrackerWarning,
                stacklevel=3,
            )


def check_trackers(names: Sequence[str]) -> None:
    """Refuse unknown trackers, before the folder of a run is created."""
    for name in names:
        if name not in TRACKERS:
            raise UserError(f"no tracker '{name}'; {nearest(name, TRACKERS)}")


@contextmanager
def tracking(names: Sequence[str], run: TrackedRun) -> Iterator[Trackers]:
    """Create the trackers of these names, and close them when the run ends."""
    check_trackers(names)
    trackers = Trackers({name: TRACKERS[name](run) for name in dict.fromkeys(names)})
    try:
        yield trackers
    finally:
        trackers.close()
