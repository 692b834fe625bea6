"""The training loop. A run can be killed at any moment and resumed bit for bit.

A run is a function of its recipe and its data. The order of the images follows from seed and epoch.
All other random numbers come from torch's generator, whose state is in every checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor

from l0arm.costs import FlopsMeter
from l0arm.distributed import ProcessLost, Team, noticing_lost_processes
from l0arm.files import write_json
from l0arm.gating import Gated, NonFiniteLoss
from l0arm.lab.data import Dataset, Preprocess, batches, crop_and_flip, random_offsets, shifted
from l0arm.lab.errors import OutputLost, RunFailed, UserError
from l0arm.lab.recipes.recipe import Recipe
from l0arm.lab.runs import records
from l0arm.lab.runs.building import Labelled, prepared, preprocess_of, without_held_out
from l0arm.lab.runs.device import check_scale, device_of, moved, precision_of, process_settings
from l0arm.lab.runs.distillation import data_loss_of
from l0arm.lab.runs.folder import FolderLock, RunFolder, fingerprint
from l0arm.lab.runs.measuring import epoch_record, evaluate, result_of
from l0arm.lab.runs.processes import (
    check_same_run,
    on_first_process,
    own_seed,
    share_of,
    step_loss,
)
from l0arm.lab.runs.session import ALONE, Checkpointing, Session, Tally, new_session
from l0arm.lab.runs.shrinking import begin_smaller
from l0arm.lab.runs.stopping import stoppable
from l0arm.lab.runs.trackers import TrackedRun, Trackers, check_trackers, tracking
from l0arm.methods import Course

SAMPLES = 10  # points of Fig. 4 in an epoch


class Callback:
    """Progress callbacks of a run. Each does nothing unless it is overridden.

    A callback that raises OutputLost is not called again: the run is saved after the step, and
    ends with RunFailed.
    """

    def on_resume(self, epoch: int, damaged: list[str]) -> None:
        """The run resumes after ``epoch``. ``damaged`` describes checkpoints that were skipped."""

    def on_step(self, done: int, total: int, loss: float) -> None:
        """``done`` of ``total`` steps of the epoch are done."""

    def on_epoch(self, record: records.EpochRecord) -> None:
        """An epoch is done, and its record is on the disk."""


def train(
    folder: RunFolder,
    recipe: Recipe,
    data: Dataset,
    *,
    resume: bool = False,
    callback: Callback | None = None,
    trackers: Sequence[str] = (),
    checkpoint_seconds: float = 60.0,
    team: Team = ALONE,
) -> dict[str, Any]:
    """Train to the last epoch of a recipe.

    Args:
        folder: Where the run is kept.
        recipe: All settings of the run.
        data: The data set that the recipe names.
        resume: Whether to continue the run that is in the folder.
        callback: Reports progress.
        trackers: Names of experiment trackers.
        checkpoint_seconds: How often to save after an epoch. Within an epoch, a tenth as often.
        team: The processes of the run. Each trains on its share of every minibatch, and the first
            one writes.

    Returns:
        The result, which is also written to the folder.

    Raises:
        UserError: The recipe, the data or the folder cannot be used.
        RunFailed: The run ended early. What was saved is still there. Also after a second Ctrl-C
            that came before the run was saved.
        Interrupted: The user stopped the run. It is saved.
    """
    data = prepared(data, recipe.data)
    check_same_run(team, recipe, data)
    with ExitStack() as stack:
        images = fingerprint(data)
        lock: FolderLock | None = None

        def take_folder() -> None:
            nonlocal lock
            lock = stack.enter_context(folder.locked())
            folder.check(recipe, resume=resume)
            folder.check_images(images)

        on_first_process(team, take_folder)
        stack.enter_context(process_settings(recipe.training))
        stop = stack.enter_context(stoppable())
        if folder.finished:
            return folder.read_result()
        check_trackers(trackers)
        checkpointing = Checkpointing(folder, team, stop, checkpoint_seconds, lock)
        stack.enter_context(checkpointing.second_interrupt())
        loop = _Loop(folder, recipe, data, callback or Callback(), checkpointing)
        if team.first:
            checkpointing.check_folder()
            # Only now, so that a recipe that cannot be built leaves no run behind.
            folder.claim(recipe, team.size, images)
            run = TrackedRun(folder.path, recipe.name, recipe.model_dump(), loop.session.epoch)
            loop.trackers = stack.enter_context(tracking(trackers, run))
        return _run(loop)


def _run(loop: _Loop) -> dict[str, Any]:
    """Run the loop. Errors become RunFailed with a note on what was saved."""
    saved = loop.checkpointing.message
    try:
        with noticing_lost_processes() if loop.team.size > 1 else nullcontext():
            return loop.run()
    except NonFiniteLoss as error:
        half = loop.recipe.training.precision == "fp16"
        hint = ", or set training.precision=bf16 (fp16 ends at 65,504)" if half else ""
        raise RunFailed(f"epoch {loop.session.epoch + 1}: {error}{hint}; {saved()}") from None
    except OSError as error:
        loop.checkpointing.check_folder()
        raise RunFailed(f"cannot write to {loop.folder.path}: {error}; {saved()}") from None
    except ProcessLost as error:
        raise RunFailed(f"{error}; {saved()}") from None


class Schedule:
    """Sets the learning rates, the stage of the method and the penalty weight of each epoch.

    A stage is entered once, before the first step of its first epoch. What it changes is part of
    the state of the network, so that a resumed run does not enter it again.
    """

    def __init__(
        self, recipe: Recipe, session: Session, held_out: Labelled | None, preprocess: Preprocess
    ) -> None:
        self.recipe, self.session = recipe, session

        def validate() -> float:
            assert held_out is not None
            return evaluate(session.trainee, *held_out, preprocess)[1]

        self._validate = validate if held_out is not None else None
        self.course: Course | None = None
        self.follow()

    def follow(self) -> None:
        """Attach the course of the method to the network that takes the steps."""
        network, optimizer = self.session.stepping
        if not isinstance(network, Gated):
            return
        epochs = self.recipe.training.epochs
        try:
            self.course = Course(network, optimizer, epochs, validate=self._validate)
        except ValueError as error:
            method = self.recipe.method.name
            raise UserError(f"training.epochs: method '{method}': {error}") from None

    def begin_epoch(self) -> None:
        """Enter the stage of the next epoch if it is new, and set rates and penalties."""
        session = self.session
        for group in session.stepping[1].param_groups:
            group["lr"] = group["initial_lr"] * self.recipe.schedule.at(session.epoch)
        if self.course is not None:
            self.course.stage = session.stage
            self.course.begin(session.epoch)
            session.stage = self.course.stage

    @property
    def lr(self) -> float:
        """The learning rate of the weights in the current epoch."""
        groups = self.session.stepping[1].param_groups
        return float(groups[0]["lr"]) if self.course is None else self.course.rates[0]


class _Loop:
    """The epochs and steps of a run."""

    def __init__(
        self,
        folder: RunFolder,
        recipe: Recipe,
        data: Dataset,
        callback: Callback,
        checkpointing: Checkpointing,
    ) -> None:
        self.folder, self.recipe, self.team = folder, recipe, checkpointing.team
        self.callback, self.checkpointing = callback, checkpointing
        self.trackers = Trackers({})
        self.device = device_of(recipe.training)
        self.data, held_out = without_held_out(recipe, moved(data, self.device))
        self.preprocess = preprocess_of(data)
        # The teachers are built before the seed is set.
        self.data_loss = data_loss_of(recipe, folder, self.data, self.preprocess)
        self.session = new_session(recipe, self.data)
        self.schedule = Schedule(recipe, self.session, held_out, self.preprocess)
        self.meter: FlopsMeter | None = None
        if isinstance(self.session.trainee, Gated):
            example = self.preprocess(self.data.train_images[:1])
            self.meter = FlopsMeter(self.session.trainee, example)
        if not self.team.first:  # the same network in all processes, then other random numbers
            torch.manual_seed(own_seed(recipe.training.seed, self.team.rank))
        per_epoch = math.ceil(len(self.data.train_images) / recipe.training.batch)
        damaged = checkpointing.resume(self.session, recipe.training.epochs, per_epoch)
        if damaged is not None:
            self._report(callback.on_resume, self.session.epoch, damaged)

    def run(self) -> dict[str, Any]:
        session, last = self.session, self.recipe.training.epochs
        while session.epoch < last:
            self._epoch()
            session.write_back()
            if self.team.first:
                self._record()
            session.tally = Tally()
            due = session.epoch == last or self.checkpointing.due()
            self.checkpointing.save(session, due=due)
        if self.team.first:
            self.checkpointing.check_folder()
            epochs = self._all_records()
            write_json(self.folder.result, result_of(self.recipe, epochs, session.trainee))
        self.team.sum([0])  # the other processes wait until it is written
        return self.folder.read_result()

    def _all_records(self) -> list[records.EpochRecord]:
        """The records of all epochs. They may have been damaged during the run."""
        try:
            records.keep_until(self.folder.records, self.session.epoch)
        except ValueError as error:
            raise RunFailed(f"{error}; {self.checkpointing.message()}") from None
        return records.read(self.folder.records)

    def _report(self, event: Callable[..., None], *values: object) -> None:
        """Report progress. If the output is lost, the run is saved after this step and ends."""
        try:
            event(*values)
        except OutputLost as error:
            self.callback = Callback()
            self.checkpointing.stop.fail(str(error))

    def _record(self) -> None:
        lr = self.schedule.lr
        record = epoch_record(self.session, self.data, self.preprocess, self.meter, lr)
        if not math.isfinite(record.test_loss):
            raise RunFailed(
                f"epoch {record.epoch}: the test loss is {record.test_loss}, the run has diverged; "
                f"lower the learning rate; {self.checkpointing.message()}"
            )
        self.checkpointing.check_folder()
        records.append(self.folder.records, record)
        self._report(self.callback.on_epoch, record)
        self.trackers.record(record)

    def _epoch(self) -> None:
        session, training = self.session, self.recipe.training
        if training.shrink and begin_smaller(session, self.recipe):
            self.schedule.follow()
        self.schedule.begin_epoch()
        network, _ = session.stepping
        self.step_loss = step_loss(network, self.team, training.draws)
        network.train()
        order = torch.Generator().manual_seed(training.seed * 1_000_003 + session.epoch)
        parts = list(batches(len(self.data.train_images), training.batch, order))
        started = time.perf_counter()
        for number in range(session.step, len(parts)):
            loss = self._step(parts[number], number)
            session.step, session.steps = number + 1, session.steps + 1
            session.tally.seconds += time.perf_counter() - started
            started = time.perf_counter()
            if self.meter is not None and number % max(1, len(parts) // SAMPLES) == 0:
                if session.smaller is not None:
                    session.smaller.working.write_gates()
                flops = self.meter()
                point = [float(session.steps), flops.training, flops.inference]
                session.tally.by_step.append(point)
            self._report(self.callback.on_step, number + 1, len(parts), loss)
            self.checkpointing.save(session, due=self.checkpointing.due(10))
        session.epoch, session.step = session.epoch + 1, 0

    def _step(self, batch: Tensor, number: int) -> float:
        """One step of Eq. 8 on one minibatch. Returns the mean loss over all processes."""
        session, (share, count) = self.session, share_of(batch, self.team)
        network, optimizer = session.stepping
        labels = self.data.train_labels[share]
        images, offsets = self._images(share, number)
        x, outputs = self.preprocess(images), []
        criterion = self.data_loss(share, x, labels, offsets)

        def closure() -> Tensor:
            with precision_of(self.recipe.training, self.device):
                logits = network(x).float()
            outputs.append(logits.detach())
            return criterion(logits)

        optimizer.zero_grad(set_to_none=True)
        loss = self.step_loss(closure, count, self._shared_generator())
        loss._replace(total=session.scaler.scale(loss.total)).backward()
        session.scaler.step(optimizer)
        session.scaler.update()
        check_scale(session.scaler)
        right = int((outputs[0].argmax(1) == labels).sum()) if count else 0
        data, penalty = loss.data.item(), loss.penalty.item()
        sums = self.team.sum([count, count * data, count * penalty, right])
        tally = session.tally
        tally.images += int(sums[0])
        tally.loss += sums[1]
        tally.penalty += sums[2]
        tally.right += int(sums[3])
        return sums[1] / sums[0]

    def _images(self, share: Tensor, number: int) -> tuple[Tensor, Tensor | None]:
        """The images of a step, with the recipe's augmentation, and the offsets of shifted ones."""
        images, spec = self.data.train_images[share], self.recipe.data
        if not (spec.augment or spec.shift):
            return images, None
        run, epoch = self.recipe.training.seed, self.session.epoch
        seed = ((run * 1_000_003 + epoch) * 1_000_003 + number) % 2**63
        if not self.team.first:
            seed = own_seed(run, self.team.rank, epoch, number)
        generator = torch.Generator().manual_seed(seed)
        if spec.augment:
            return crop_and_flip(images, generator), None
        offsets = random_offsets(images, generator, spec.shift)
        return shifted(images, offsets), offsets

    def _shared_generator(self) -> torch.Generator | None:
        """A generator that is the same in all processes at a step, if they share their draws."""
        training = self.recipe.training
        if self.team.size == 1 or training.draws == "own":
            return None
        seed = own_seed(training.seed, -1, self.session.steps)
        return torch.Generator(self.device).manual_seed(seed)
