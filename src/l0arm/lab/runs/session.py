"""The state of a run between two steps: created, saved as a checkpoint, restored."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler

from l0arm.distributed import Team
from l0arm.lab.data import Dataset
from l0arm.lab.errors import Interrupted, RunFailed, UserError
from l0arm.lab.recipes.recipe import Recipe
from l0arm.lab.runs import records
from l0arm.lab.runs.building import Trainee, build_optimizer, build_trainee
from l0arm.lab.runs.checkpoint import newest_checkpoint, save_checkpoint
from l0arm.lab.runs.device import random_state, scaler_of, set_random_state
from l0arm.lab.runs.folder import FolderLock, RunFolder
from l0arm.lab.runs.restoring import check_kept, check_kinds, check_optimizer, check_progress
from l0arm.lab.runs.shrinking import Smaller
from l0arm.lab.runs.stopping import Stop

ALONE = Team()


@dataclass
class Tally:
    """Sums over the steps of the current epoch."""

    images: int = 0
    loss: float = 0.0
    penalty: float = 0.0
    right: int = 0
    seconds: float = 0.0
    by_step: list[list[float]] = field(default_factory=list)


@dataclass
class Session:
    """Everything that training changes.

    The network and its optimizer keep their full size. That is what is saved and reported. While
    ``smaller`` is there, it takes the steps in their place.
    """

    trainee: Trainee
    optimizer: torch.optim.Optimizer
    smaller: Smaller | None = None
    kept: Tensor | None = None  # the gates of the smaller network
    epoch: int = 0  # epochs done
    step: int = 0  # steps done in the current epoch
    steps: int = 0  # steps done in the run
    stage: int = -1  # the last stage of the method that was entered
    tally: Tally = field(default_factory=Tally)
    scaler: GradScaler = field(default_factory=lambda: GradScaler(enabled=False))

    @property
    def stepping(self) -> tuple[Trainee, torch.optim.Optimizer]:
        """The network and the optimizer that take the steps."""
        if self.smaller is None:
            return self.trainee, self.optimizer
        return self.smaller.gated, self.smaller.optimizer

    def write_back(self) -> None:
        """Copy what the smaller network learned into the whole one."""
        if self.smaller is not None:
            self.smaller.write_back(self.optimizer)

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        weight: Tensor = self.optimizer.param_groups[0]["params"][0]
        return weight.device

    def state(self, team: Team = ALONE) -> dict[str, Any]:
        """Everything the next step depends on. Of several processes, all random states."""
        self.write_back()
        random = random_state(self.device)
        scaler = {"scaler": self.scaler.state_dict()} if self.scaler.is_enabled() else {}
        kept = {} if self.kept is None else {"kept": self.kept}
        return (
            scaler
            | kept
            | {
                "trainee": self.trainee.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "generator": random if team.size == 1 else team.stacked(random),
                "epoch": self.epoch,
                "step": self.step,
                "steps": self.steps,
                "stage": self.stage,
                "tally": asdict(self.tally),
            }
        )

    def restore(self, state: dict[str, Any], rank: int = 0) -> None:
        """Load a state, or leave everything as it was.

        Raises:
            ValueError: The state is malformed, or that of another network.
        """
        own = copy.deepcopy(self.state())
        check_kinds(state, own)
        # Checkpoints of former versions lack the gates' settings. They are those of the recipe.
        settings = {key: own["trainee"][key] for key in own["trainee"] if key == "_extra_state"}
        try:
            self.trainee.load_state_dict(settings | state["trainee"])
            self.optimizer.load_state_dict(state["optimizer"])
            check_optimizer(self.optimizer, state["optimizer"], own["optimizer"])
            self.scaler.load_state_dict(state.get("scaler", {}))
            set_random_state(random_rows(state)[rank], self.device)
            check_kept(state.get("kept"), self.trainee)
        except Exception as error:  # torch raises errors of any kind for malformed states
            self.trainee.load_state_dict(own["trainee"])
            self.optimizer.load_state_dict(own["optimizer"])
            reason = (str(error).strip() or repr(error)).splitlines()[-1].strip()
            raise ValueError(f"the checkpoint is of another network: {reason}") from None
        self.epoch, self.step, self.steps = state["epoch"], state["step"], state["steps"]
        self.stage, self.smaller, self.kept = state["stage"], None, state.get("kept")
        known = asdict(self.tally).keys()
        self.tally = Tally(**{key: state["tally"][key] for key in known})


def random_rows(state: dict[str, Any]) -> Tensor:
    """The random state of each process of a run, one per row."""
    rows: Tensor = state["generator"]
    return rows if rows.dim() == 2 else rows[None]


def new_session(recipe: Recipe, data: Dataset) -> Session:
    """The start of a run, on the device of its data. All randomness comes from the seeds."""
    seed, init_seed = recipe.training.seed, recipe.training.init_seed
    torch.manual_seed(seed if init_seed is None else init_seed)
    trainee = build_trainee(recipe, data)
    if init_seed is not None:
        torch.manual_seed(seed)
    optimizer = build_optimizer(recipe, trainee)
    scaler = scaler_of(recipe.training, data.train_images.device)
    return Session(trainee, optimizer, scaler=scaler)


def restored_session(folder: RunFolder, data: Dataset) -> Session:
    """The newest intact checkpoint of a run, for data prepared as its recipe says."""
    session = new_session(folder.recipe(), data)
    state, damaged = newest_checkpoint(folder.checkpoints, session.restore)
    if state is None:
        why = damaged[0] if damaged else "there is none"
        raise UserError(f"no checkpoint to load in {folder.path}: {why}")
    return session


@dataclass
class Checkpointing:
    """Saves a run every ``seconds`` and when it is stopped. All processes save together."""

    folder: RunFolder
    team: Team
    stop: Stop
    seconds: float
    lock: FolderLock | None = None  # of the first process, which writes
    saved_at: float = field(default_factory=time.monotonic)
    saved_epoch: int | None = None
    ended: bool = False  # the run was saved because it was asked to stop

    def resume(self, session: Session, epochs: int, per_epoch: int) -> list[str] | None:
        """Restore the newest checkpoint that is intact and whose epochs have all their records.

        Args:
            session: The new session of the run.
            epochs: The epochs of the run.
            per_epoch: The steps of an epoch.

        Returns:
            A message for each checkpoint that was skipped, or None without a checkpoint.
        """

        def use(state: dict[str, Any]) -> None:
            check_kinds(state, session.state())
            check_progress(state, epochs, per_epoch)
            records.lines_until(self.folder.records, state["epoch"])
            self._check_processes(len(random_rows(state)))
            session.restore(state, self.team.rank)

        state, skipped = newest_checkpoint(self.folder.checkpoints, use)
        if state is None and skipped:
            raise UserError(
                f"no sound checkpoint: {skipped[0]}; restore the file from a copy, or start in a "
                "new folder"
            )
        if state is not None:
            self.saved_epoch = session.epoch
        self._check_steps(session.steps)
        if self.team.first:
            records.keep_until(self.folder.records, session.epoch)
        return None if state is None else skipped

    def check_folder(self) -> None:
        """Fail if the folder was moved away. Called before anything is written to it."""
        if self.lock is not None:
            self.lock.check()

    def _check_processes(self, saved: int) -> None:
        if saved != self.team.size:
            raise UserError(
                f"the run in {self.folder.path} is one of {saved} process(es), not of "
                f"{self.team.size}; resume it with as many (torchrun --nproc-per-node {saved}), or "
                "start in a new folder"
            )

    def _check_steps(self, steps: int) -> None:
        """Processes on machines with different disks would find different checkpoints."""
        found = self.team.texts(str(steps)) if self.team.size > 1 else []
        if len(set(found)) > 1:
            raise UserError(
                f"the processes find checkpoints after {', '.join(found)} steps in "
                f"{self.folder.path}; it must be one folder that all of them can read"
            )

    def due(self, factor: float = 1) -> bool:
        """Whether ``factor`` times the interval has passed since the last checkpoint."""
        return time.monotonic() - self.saved_at >= self.seconds * factor

    def save(self, session: Session, *, due: bool) -> None:
        """Save if it is due in the first process, or if any process was asked to stop.

        Raises:
            Interrupted: The user stopped a process. The run is saved.
            RunFailed: A process cannot go on. The run is saved.
        """
        due, stop = due and self.team.first, self.stop.requested
        save, end = (n > 0 for n in self.team.sum([due or stop, stop]))
        if save:
            state = session.state(self.team)
            if self.team.first:
                self.check_folder()
                save_checkpoint(self.folder.checkpoints, session.steps, state)
            self.saved_at, self.saved_epoch = time.monotonic(), session.epoch
        if end:
            self.ended = True
            if self.stop.failure:
                raise RunFailed(f"{self.stop.failure}; {self.message()}")
            raise Interrupted(self.message())

    @contextmanager
    def second_interrupt(self) -> Iterator[None]:
        """Turn a KeyboardInterrupt into an error that says what is saved."""
        try:
            yield
        except KeyboardInterrupt:
            if self.ended:
                raise Interrupted(self.message()) from None
            lost = "interrupted at once; the steps since the last checkpoint are lost"
            raise RunFailed(f"{lost}; {self.message()}") from None

    def message(self) -> str:
        """Where the run can be resumed."""
        path = self.folder.path
        if self.saved_epoch is not None:
            return f"saved after epoch {self.saved_epoch} in {path}; go on with --resume"
        if any(self.folder.checkpoints.glob("*.json")):
            return f"nothing new was saved in {path}; go on with --resume"
        return f"nothing was saved in {path} yet"
