"""Where else the records of a run go: a tracker is told every epoch, and may fail.

The run's own folder is the record that counts. A tracker whose package is missing is refused at the
start; one that fails later is left out with a warning, and the run goes on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from l0arm.lab.runs.errors import UserError, nearest
from l0arm.lab.runs.events import TensorBoard
from l0arm.lab.runs.records import EpochRecord
from l0arm.lab.runs.wandb_run import WandbRun


class TrackerWarning(UserWarning):
    """A tracker failed and is told nothing more."""


class Tracker(Protocol):
    """Who keeps the figures of a run in a place of its own."""

    def record(self, record: EpochRecord) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Tracked:
    """What a tracker is told at the start."""

    folder: Path
    name: str
    settings: dict[str, Any]
    epoch: int  # epochs done: more than 0 when resumed


TRACKERS: dict[str, Callable[[Tracked], Tracker]] = {
    "tensorboard": lambda run: TensorBoard(run.folder / "events", run.epoch),
    "wandb": lambda run: WandbRun(run.folder, run.name, run.settings, run.epoch),
}


class Trackers:
    """Several trackers, none of which can end a run."""

    def __init__(self, trackers: dict[str, Tracker]) -> None:
        self._trackers = trackers

    def record(self, record: EpochRecord) -> None:
        """Tell all of them about an epoch."""
        for name, tracker in list(self._trackers.items()):
            self._attempt(name, partial(tracker.record, record))

    def close(self) -> None:
        """Let all of them finish."""
        for name, tracker in list(self._trackers.items()):
            self._attempt(name, tracker.close)

    def _attempt(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # whatever a foreign package raises
            del self._trackers[name]
            warnings.warn(
                f"the tracker '{name}' failed ({type(error).__name__}: {error}) and is left out "
                "from here on; the run goes on, its own records are complete",
                TrackerWarning,
                stacklevel=3,
            )


def check_trackers(names: Sequence[str]) -> None:
    """Refuse what is not there, before a run has a folder."""
    for name in names:
        if name not in TRACKERS:
            raise UserError(f"no tracker '{name}'; {nearest(name, TRACKERS)}")


@contextmanager
def tracking(names: Sequence[str], run: Tracked) -> Iterator[Trackers]:
    """The trackers of these names for as long as the run takes."""
    check_trackers(names)
    trackers = Trackers({name: TRACKERS[name](run) for name in dict.fromkeys(names)})
    try:
        yield trackers
    finally:
        trackers.close()
