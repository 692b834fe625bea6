"""The one training loop: a recipe, its data, a folder; it can be killed at any moment.

A run is a function of its recipe and the data alone: the order of the images is a function of seed
and epoch, everything else random comes from torch's generator, whose state is in every checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from l0arm.data import Dataset, batches, crop_and_flip
from l0arm.experiments import records
from l0arm.experiments.checkpoint import newest_checkpoint, save_checkpoint
from l0arm.experiments.errors import RunFailed, UserError
from l0arm.experiments.events import event_writer, write_events
from l0arm.experiments.files import write_json
from l0arm.experiments.folder import RunFolder
from l0arm.experiments.interruption import Stop, stoppable
from l0arm.experiments.measuring import epoch_record, final_gates
from l0arm.experiments.preparation import prepared, preprocess_of
from l0arm.experiments.recipe import Recipe
from l0arm.experiments.session import Tally, new_session
from l0arm.experiments.stages import Course, without_held_out
from l0arm.groups import Gated, NonFiniteLoss
from l0arm.metrics import FlopsMeter

SAMPLES = 10  # points of Fig. 4 in an epoch


class Interrupted(Exception):
    """The user asked for an end; the run is saved and can be resumed."""


class Observer(Protocol):
    """Who is told how a run goes on."""

    def resumed(self, epoch: int, damaged: list[str]) -> None: ...

    def stepped(self, done: int, total: int, loss: float) -> None: ...

    def recorded(self, record: records.EpochRecord) -> None: ...


class Silent:
    """An observer that tells nobody."""

    def resumed(self, epoch: int, damaged: list[str]) -> None: ...

    def stepped(self, done: int, total: int, loss: float) -> None: ...

    def recorded(self, record: records.EpochRecord) -> None: ...


def train(
    folder: RunFolder,
    recipe: Recipe,
    data: Dataset,
    *,
    resume: bool = False,
    observer: Observer | None = None,
    tensorboard: bool = False,
    checkpoint_seconds: float = 60.0,
) -> dict[str, Any]:
    """Train to the last epoch of the recipe and return the result, also written to the folder."""
    data = prepared(data, recipe.data)
    with folder.locked(), process_settings(recipe), stoppable() as stop:
        folder.check(recipe, resume=resume)
        if folder.finished:
            return folder.read_result()
        loop = _Loop(folder, recipe, data, observer or Silent(), stop, checkpoint_seconds)
        folder.claim(recipe)  # only now: a recipe that cannot be built leaves no run behind
        if tensorboard:
            loop.events = event_writer(folder.path / "events", loop.session.epoch)
        try:
            return loop.run()
        except NonFiniteLoss as error:
            raise RunFailed(f"epoch {loop.session.epoch + 1}: {error}; {loop.saved()}") from None
        except OSError as error:
            raise RunFailed(f"cannot write to {folder.path}: {error}; {loop.saved()}") from None


@contextmanager
def process_settings(recipe: Recipe) -> Iterator[None]:
    """As many threads as the recipe says, and no denormals: moments of closed weights decay to
    them, and they are slow."""
    threads = torch.get_num_threads()
    torch.set_num_threads(recipe.training.threads)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


class _Loop:
    """A run under way."""

    def __init__(
        self,
        folder: RunFolder,
        recipe: Recipe,
        data: Dataset,
        observer: Observer,
        stop: Stop,
        checkpoint_seconds: float,
    ) -> None:
        self.folder, self.recipe = folder, recipe
        self.data, held = without_held_out(recipe, data)
        self.observer, self.stop = observer, stop
        self.preprocess = preprocess_of(data)
        self.session = new_session(recipe, self.data)
        self.course = Course(recipe, self.session, held, self.preprocess)
        self.meter = self._meter()
        self.checkpoint_seconds, self.saved_at = checkpoint_seconds, time.monotonic()
        self.saved_epoch: int | None = None
        self.events: Any = None
        self._resume()

    def _meter(self) -> FlopsMeter | None:
        if not isinstance(self.session.trainee, Gated):
            return None
        return FlopsMeter(self.session.trainee, self.preprocess(self.data.train_images[:1]))

    def _resume(self) -> None:
        state, damaged = newest_checkpoint(self.folder.checkpoints)
        if state is None and damaged:
            raise UserError(f"no sound checkpoint: {damaged[0]}; start in a new folder")
        if state is not None:
            self.session.restore(state)
            self.saved_epoch = self.session.epoch
            self.observer.resumed(self.session.epoch, damaged)
        records.keep_until(self.folder.records, self.session.epoch)

    def run(self) -> dict[str, Any]:
        session, last = self.session, self.recipe.training.epochs
        while session.epoch < last:
            self._epoch()
            record = epoch_record(session, self.data, self.preprocess, self.meter)
            session.tally = Tally()
            records.append(self.folder.records, record)
            self._tell(record)
            self._save(due=session.epoch == last)
        result = summary(self.recipe, records.read(self.folder.records))
        result["gates"] = final_gates(session.trainee)
        write_json(self.folder.result, result)
        return result

    def _tell(self, record: records.EpochRecord) -> None:
        self.observer.recorded(record)
        if self.events is not None:
            write_events(self.events, record)

    def _epoch(self) -> None:
        session, training = self.session, self.recipe.training
        self.course.begin()
        session.trainee.train()
        order = torch.Generator().manual_seed(training.seed * 1_000_003 + session.epoch)
        parts = list(batches(len(self.data.train_images), training.batch, order))
        started = time.perf_counter()
        for number in range(session.step, len(parts)):
            loss = self._step(parts[number], number)
            session.step, session.steps = number + 1, session.steps + 1
            session.tally.seconds += time.perf_counter() - started
            started = time.perf_counter()
            if self.meter is not None and number % max(1, len(parts) // SAMPLES) == 0:
                flops = self.meter()
                point = [float(session.steps), flops.training, flops.inference]
                session.tally.by_step.append(point)
            self.observer.stepped(number + 1, len(parts), loss)
            self._save(due=False, within_epoch=True)
        session.epoch, session.step = session.epoch + 1, 0

    def _step(self, batch: Tensor, number: int) -> float:
        """One step of Eq. 8 on one minibatch."""
        session, labels = self.session, self.data.train_labels[batch]
        images = self.data.train_images[batch]
        if self.recipe.data.augment:
            seed = (self.recipe.training.seed * 1_000_003 + session.epoch) * 1_000_003 + number
            images = crop_and_flip(images, torch.Generator().manual_seed(seed))
        x, outputs = self.preprocess(images), []

        def closure() -> Tensor:
            logits = session.trainee(x)
            outputs.append(logits.detach())
            return F.cross_entropy(logits, labels)

        session.optimizer.zero_grad(set_to_none=True)
        loss = session.trainee.loss(closure)
        loss.backward()
        session.optimizer.step()
        self.course.after_step()
        data_loss, tally = loss.data.item(), session.tally
        tally.images += len(labels)
        tally.loss += data_loss * len(labels)
        tally.penalty += loss.penalty.item() * len(labels)
        tally.right += int((outputs[0].argmax(1) == labels).sum())
        return data_loss

    def _save(self, *, due: bool, within_epoch: bool = False) -> None:
        """Save when it is time, and when an end is asked for."""
        waited = time.monotonic() - self.saved_at
        late = waited >= self.checkpoint_seconds * (10 if within_epoch else 1)
        if due or late or self.stop.requested:
            session = self.session
            save_checkpoint(self.folder.checkpoints, session.steps, session.state())
            self.saved_at, self.saved_epoch = time.monotonic(), session.epoch
        if self.stop.requested:
            raise Interrupted(self.saved())

    def saved(self) -> str:
        """Where the run can be taken up again."""
        if self.saved_epoch is None:
            return f"nothing was saved in {self.folder.path} yet"
        return f"saved after epoch {self.saved_epoch} in {self.folder.path}; go on with --resume"


def summary(recipe: Recipe, epochs: list[records.EpochRecord]) -> dict[str, Any]:
    """The outcome: the last epoch's figures, never the best one's."""
    last = epochs[-1]
    return {
        "recipe": recipe.name,
        "seed": recipe.training.seed,
        "epochs": last.epoch,
        "test_accuracy": last.test_accuracy,
        "prune_rate": last.prune_rate,
        "prune_rate_realised": last.prune_rate_realised,
        "architecture": last.architecture or "full model",
        "undecided": last.undecided,
        "flops_dense": last.flops_dense,
        "flops_inference": last.flops_inference,
        "seconds_per_epoch": median(e.seconds for e in epochs),
    }
