"""The one training loop: a recipe, its data, a folder; it can be killed at any moment.

A run is a function of its recipe and the data alone: the order of the images is a function of seed
and epoch, everything else random comes from torch's generator, whose state is in every checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from statistics import median
from typing import Any, Protocol

import torch
from torch import Tensor

from l0arm.costs import FlopsMeter
from l0arm.distributed import ProcessLost, Team, noticing_lost_processes
from l0arm.files import write_json
from l0arm.gating import Gated, NonFiniteLoss
from l0arm.lab.data import Dataset, batches, crop_and_flip, shift
from l0arm.lab.recipes.recipe import Recipe
from l0arm.lab.runs import records
from l0arm.lab.runs.device import check_scale, device_of, moved, precision_of
from l0arm.lab.runs.distillation import lesson_of
from l0arm.lab.runs.errors import RunFailed
from l0arm.lab.runs.fingerprint import fingerprint
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.interruption import stoppable
from l0arm.lab.runs.measuring import epoch_record, final_gates
from l0arm.lab.runs.preparation import prepared, preprocess_of
from l0arm.lab.runs.saving import Saving
from l0arm.lab.runs.session import ALONE, Tally, new_session
from l0arm.lab.runs.stages import Stages, without_held_out
from l0arm.lab.runs.together import check_same_run, first_does, objective, own_seed, share_of
from l0arm.lab.runs.trackers import Tracked, Trackers, check_trackers, tracking

SAMPLES = 10  # points of Fig. 4 in an epoch


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
    trackers: Sequence[str] = (),
    checkpoint_seconds: float = 60.0,
    team: Team = ALONE,
) -> dict[str, Any]:
    """Train to the last epoch of the recipe and return the result, also written to the folder.

    Of a team of processes each trains on its share of every minibatch; the first one alone writes.
    """
    data = prepared(data, recipe.data)
    check_same_run(team, recipe, data)
    with ExitStack() as stack:
        images = fingerprint(data)
        first_does(team, lambda: _take(stack, folder, recipe, resume, images))
        stack.enter_context(process_settings(recipe))
        stop = stack.enter_context(stoppable())
        if folder.finished:
            return folder.read_result()
        check_trackers(trackers)
        saving = Saving(folder, team, stop, checkpoint_seconds)
        loop = _Loop(folder, recipe, data, observer or Silent(), saving)
        if team.first:
            # Only now: one that cannot be built leaves no run.
            folder.claim(recipe, team.size, images)
            run = Tracked(folder.path, recipe.name, recipe.model_dump(), loop.session.epoch)
            loop.trackers = stack.enter_context(tracking(trackers, run))
        return _run(loop)


def _take(stack: ExitStack, folder: RunFolder, recipe: Recipe, resume: bool, images: str) -> None:
    stack.enter_context(folder.locked())
    folder.check(recipe, resume=resume)
    folder.check_images(images)


def _run(loop: _Loop) -> dict[str, Any]:
    """To the end; what ends it before is told with what was saved."""
    try:
        with noticing_lost_processes() if loop.team.size > 1 else nullcontext():
            return loop.run()
    except NonFiniteLoss as error:
        half = loop.recipe.training.precision == "fp16"
        hint = ", or set training.precision=bf16 (fp16 ends at 65,504)" if half else ""
        epoch = loop.session.epoch + 1
        raise RunFailed(f"epoch {epoch}: {error}{hint}; {loop.saving.told()}") from None
    except OSError as error:
        raise RunFailed(
            f"cannot write to {loop.folder.path}: {error}; {loop.saving.told()}"
        ) from None
    except ProcessLost as error:
        raise RunFailed(f"{error}; {loop.saving.told()}") from None


@contextmanager
def process_settings(recipe: Recipe) -> Iterator[None]:
    """As many threads as the recipe says, and no denormals: moments of closed weights decay to
    them, and they are slow. On a GPU, float32 is float32: estimates are differences of losses."""
    threads, tf32 = torch.get_num_threads(), torch.backends.cudnn.allow_tf32
    torch.set_num_threads(recipe.training.threads)
    torch.set_flush_denormal(True)
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = tf32
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
        saving: Saving,
    ) -> None:
        self.folder, self.recipe, self.team = folder, recipe, saving.team
        self.device = device_of(recipe.training)
        self.data, held = without_held_out(recipe, moved(data, self.device))
        self.observer, self.saving = observer, saving
        self.preprocess = preprocess_of(data)
        self.lesson = lesson_of(recipe, folder, self.data, self.preprocess)  # before seeding
        self.session = new_session(recipe, self.data)
        self.stages = Stages(recipe, self.session, held, self.preprocess)
        self.meter = self._meter()
        self.trackers = Trackers({})
        self._seed()
        self._resume()

    def _meter(self) -> FlopsMeter | None:
        if not isinstance(self.session.trainee, Gated):
            return None
        return FlopsMeter(self.session.trainee, self.preprocess(self.data.train_images[:1]))

    def _seed(self) -> None:
        """All processes start from the same network and go on with random numbers of their own."""
        if not self.team.first:
            torch.manual_seed(own_seed(self.recipe.training.seed, self.team.rank))

    def _resume(self) -> None:
        damaged = self.saving.resume(self.session)
        if damaged is not None:
            self.observer.resumed(self.session.epoch, damaged)
        if self.team.first:
            records.keep_until(self.folder.records, self.session.epoch)

    def run(self) -> dict[str, Any]:
        session, last = self.session, self.recipe.training.epochs
        while session.epoch < last:
            self._epoch()
            if self.team.first:
                self._record()
            session.tally = Tally()
            self.saving.save(session, wanted=session.epoch == last or self.saving.late())
        if self.team.first:
            result = summary(self.recipe, records.read(self.folder.records))
            result["gates"] = final_gates(session.trainee)
            write_json(self.folder.result, result)
        self.team.sum([0])  # the others wait until it is written
        return self.folder.read_result()

    def _record(self) -> None:
        lr = self.stages.lr
        record = epoch_record(self.session, self.data, self.preprocess, self.meter, lr)
        if not math.isfinite(record.test_loss):
            raise RunFailed(
                f"epoch {record.epoch}: the test loss is {record.test_loss}, the run has diverged; "
                f"lower the learning rate; {self.saving.told()}"
            )
        records.append(self.folder.records, record)
        self.observer.recorded(record)
        self.trackers.record(record)

    def _epoch(self) -> None:
        session, training = self.session, self.recipe.training
        self.stages.begin()
        self.objective = objective(session.trainee, self.team, training.draws)
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
            self.saving.save(session, wanted=self.saving.late(10))
        session.epoch, session.step = session.epoch + 1, 0

    def _step(self, batch: Tensor, number: int) -> float:
        """One step of Eq. 8 on one minibatch."""
        session, (share, count) = self.session, share_of(batch, self.team)
        labels = self.data.train_labels[share]
        x, outputs = self.preprocess(self._images(share, number)), []
        criterion = self.lesson(share, x, labels)

        def closure() -> Tensor:
            with precision_of(self.recipe.training, self.device):
                logits = session.trainee(x).float()
            outputs.append(logits.detach())
            return criterion(logits)

        session.optimizer.zero_grad(set_to_none=True)
        loss = self.objective(closure, count, self._shared_generator())
        loss._replace(total=session.scaler.scale(loss.total)).backward()
        session.scaler.step(session.optimizer)
        session.scaler.update()
        check_scale(session.scaler)
        right = int((outputs[0].argmax(1) == labels).sum()) if count else 0
        return self._count(count, loss.data.item(), loss.penalty.item(), right)

    def _images(self, share: Tensor, number: int) -> Tensor:
        """The images of a step, moved and flipped if the recipe says so."""
        images, how = self.data.train_images[share], self.recipe.data
        if not (how.augment or how.shift):
            return images
        run, epoch = self.recipe.training.seed, self.session.epoch
        seed = ((run * 1_000_003 + epoch) * 1_000_003 + number) % 2**63
        if not self.team.first:
            seed = own_seed(run, self.team.rank, epoch, number)
        generator = torch.Generator().manual_seed(seed)
        if how.augment:
            return crop_and_flip(images, generator)
        return shift(images, generator, how.shift)

    def _shared_generator(self) -> torch.Generator | None:
        """The same in all processes at a step, if they share their draws."""
        training = self.recipe.training
        if self.team.size == 1 or training.draws == "own":
            return None
        seed = own_seed(training.seed, -1, self.session.steps)
        return torch.Generator(self.device).manual_seed(seed)

    def _count(self, images: int, loss: float, penalty: float, right: int) -> float:
        """Add a step of all processes to the tally; give its mean loss."""
        sums = self.team.sum([images, images * loss, images * penalty, right])
        tally = self.session.tally
        tally.images += int(sums[0])
        tally.loss += sums[1]
        tally.penalty += sums[2]
        tally.right += int(sums[3])
        return sums[1] / sums[0]


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
