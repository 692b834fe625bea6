"""The training of ``prune``: gradients, checkpoints and progress around the stages."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from l0arm.distributed import Team
from l0arm.gating import NonFiniteLoss
from l0arm.pruning.processes import FailedElsewhere, average, take_over
from l0arm.pruning.resuming import Checkpoints
from l0arm.pruning.scores import Score
from l0arm.pruning.stages import Pruning
from l0arm.pruning.stream import Stream
from l0arm.pruning.task import Step, Task, to_device

Precision = Literal["bf16", "fp16"]
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
SMALLEST_SCALE = 2.0**-10  # the scaler starts at 2^16 and halves at every overflow
RANKED = 30  # batches that the scores see before gates are trained
LOGGED = 100  # records in the history


class Training:
    """Trains through all stages of a ``Pruning``, in one process or in each of several.

    Args:
        pruning: The stages.
        task: Batches, step and length.
        taught: The step that is trained, which may have a teacher.
        score: Starts gates that are trained. None: they start alike.
        precision: Autocast of the forward passes.
        quiet: Print no progress.
    """

    checkpoints: Checkpoints | None = None

    def __init__(
        self,
        pruning: Pruning,
        task: Task,
        taught: Step,
        score: Score | None,
        precision: Precision | None,
        quiet: bool,
    ) -> None:
        self.pruning, self.task = pruning, task
        self.taught, self.score = taught, score
        self.device = pruning.gated.phi.device
        self.team = Team.here(str(self.device))
        self.quiet = quiet or not self.team.first
        pruning.gated.averaged_elsewhere = True  # if there are several processes, in ``train``
        take_over(self.team, pruning.gated)
        self.half = None if precision is None else HALF[precision]
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        pruning.scaler = self.scaler if self.scaler.is_enabled() else None
        self.stream = Stream(task.batches)
        self.history: list[dict[str, Any]] = []
        self.printed = 0.0

    def restore(self) -> None:
        """Go to the newest checkpoint, if there is one."""
        saved = self.checkpoints
        parts = (self.pruning, self.stream, self.history, self.scaler)
        if saved is not None:
            saved.restore(*parts)

    def rank(self, score: Score) -> None:
        """Start gates that are trained from scores on the next batches."""

        def closure(batch: Any) -> Callable[[], Tensor]:
            return lambda: self.task.step(self.pruning.gated, batch)

        count = min(RANKED, self.task.length)
        self.pruning.rank([closure(self._next()) for _ in range(count)], score)

    def train(self) -> None:
        """Make all steps."""
        pruning = self.pruning
        if self.score is not None and pruning.rounds is None and pruning.step == 0:
            self.rank(self.score)
        while pruning.stage != "done":
            stage, batch, model = pruning.stage, self._next(), pruning.model.train()
            if stage == "learn" and not pruning.backward:
                pruning.gated.model.eval()  # the network that is kept as it is
            value = self._gradients(model, batch)
            before = pruning.step
            self.scaler.step(pruning.optimizer)  # hooks of ``pruning`` do the rest
            self.scaler.update()
            if pruning.step == before:  # gradients overflowed, and the scale was lowered
                _check_scale(self.scaler)
                continue
            self._log(stage, value)
            if self.checkpoints is not None and self.checkpoints.due(pruning):
                self.checkpoints.save(pruning, self.stream, self.history, self.scaler)

    def _gradients(self, model: nn.Module, batch: Any) -> float:
        """Compute all gradients. With several processes they are the means over them."""
        pruning, value, failure = self.pruning, None, None
        pruning.optimizer.zero_grad()
        pruning.gates.zero_grad()
        try:
            with torch.autocast(self.device.type, self.half, enabled=self.half is not None):
                loss = pruning.loss(lambda: self.taught(model, batch))
            value = loss.data.item()
            if not math.isfinite(value):
                raise NonFiniteLoss(f"loss of step {pruning.step + 1}", value)
            self.scaler.scale(loss.total).backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            if self.team.size == 1:
                raise
            failure = error
        if self.team.size > 1:
            trained = [p for p in model.parameters() if p.requires_grad]
            if pruning.small is None and not pruning.backward:
                trained = [pruning.gated.phi, *pruning.gated.extras.parameters()]
            try:
                mine = None if failure else value
                return average(self.team, trained, list(model.buffers()), mine)
            except FailedElsewhere as elsewhere:
                raise (failure or elsewhere) from None
        assert value is not None
        return value

    def _next(self) -> Any:
        return to_device(next(self.stream), self.device)

    def _log(self, stage: str, loss: float) -> None:
        """Keep about LOGGED records, and print one line now and then."""
        step, steps = self.pruning.step, self.pruning.steps
        if step % max(1, steps // LOGGED) and step != steps:
            return
        record: dict[str, Any] = {"stage": stage, "step": step, "loss": loss}
        gated, left = self.pruning.gated, ""
        if stage == "learn" and gated.budget is not None:
            for what, (share, now, end) in gated.budget.shares(
                gated.gates.open_probability
            ).items():
                now = end if self.pruning.rounds is not None else now
                record |= {f"{what} share": share, f"{what} target": now}
                left += f", {what} {100 * share:.0f} % (target {100 * now:.0f} %)"
        self.history.append(record)
        terminal = sys.stderr.isatty()
        now_printed, last = time.monotonic(), step == steps
        if self.quiet or (now_printed - self.printed < (0.2 if terminal else 5.0) and not last):
            return
        self.printed = now_printed
        line = f"{stage} {step}/{steps}: loss {loss:.4f}{left}"
        if terminal:  # one line that is written over
            bar = ("#" * (20 * step // steps)).ljust(20, ".")
            print(f"\r[{bar}] {line}\x1b[K", end="\n" if last else "", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)


def _check_scale(scaler: torch.amp.GradScaler) -> None:
    """Fail if gradients overflow at every scale: all steps would be skipped."""
    if scaler.get_scale() < SMALLEST_SCALE:
        raise NonFiniteLoss("gradient in fp16, whatever it is scaled by,", math.inf)
