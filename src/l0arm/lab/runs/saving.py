"""When a run is saved, and how it is found again; all processes of a run agree on both."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from l0arm.distributed import Team
from l0arm.lab.runs.checkpoint import newest_checkpoint, save_checkpoint
from l0arm.lab.runs.errors import UserError
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.interruption import Stop
from l0arm.lab.runs.session import Session, random_rows


class Interrupted(Exception):
    """The user asked for an end; the run is saved and can be resumed."""


@dataclass
class Saving:
    """The checkpoints of a run, written every so many seconds and when an end is asked for."""

    folder: RunFolder
    team: Team
    stop: Stop
    seconds: float
    saved_at: float = field(default_factory=time.monotonic)
    saved_epoch: int | None = None

    def resume(self, session: Session) -> list[str] | None:
        """Go back to the newest sound checkpoint and tell what was damaged; None without one."""
        state, damaged = newest_checkpoint(self.folder.checkpoints)
        if state is None and damaged:
            raise UserError(f"no sound checkpoint: {damaged[0]}; start in a new folder")
        if state is not None:
            self._check_processes(len(random_rows(state)))
            session.restore(state, self.team.rank)
            self.saved_epoch = session.epoch
        self._check_steps(session.steps)
        return None if state is None else damaged

    def _check_processes(self, then: int) -> None:
        if then != self.team.size:
            raise UserError(
                f"the run in {self.folder.path} is one of {then} process(es), not of "
                f"{self.team.size}; resume it with as many (torchrun --nproc-per-node {then}), or "
                "start in a new folder"
            )

    def _check_steps(self, steps: int) -> None:
        found = self.team.texts(str(steps)) if self.team.size > 1 else []
        if len(set(found)) > 1:
            raise UserError(
                f"the processes find checkpoints after {', '.join(found)} steps in "
                f"{self.folder.path}; it must be one folder that all of them can read"
            )

    def late(self, patience: float = 1) -> bool:
        """Whether so many times the seconds have passed since the last checkpoint."""
        return time.monotonic() - self.saved_at >= self.seconds * patience

    def save(self, session: Session, *, wanted: bool) -> None:
        """Save if the first process wants to, or any was asked to end; all of them or none."""
        wanted, stop = wanted and self.team.first, self.stop.requested
        save, end = (n > 0 for n in self.team.sum([wanted or stop, stop]))
        if save:
            state = session.state(self.team)
            if self.team.first:
                save_checkpoint(self.folder.checkpoints, session.steps, state)
            self.saved_at, self.saved_epoch = time.monotonic(), session.epoch
        if end:
            raise Interrupted(self.told())

    def told(self) -> str:
        """Where the run can be taken up again."""
        if self.saved_epoch is None:
            return f"nothing was saved in {self.folder.path} yet"
        return f"saved after epoch {self.saved_epoch} in {self.folder.path}; go on with --resume"
