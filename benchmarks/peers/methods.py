"""The methods: each makes a small, trained network from a dense one within so many steps."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch_pruning as tp
from torch import Tensor, nn

import l0arm
from benchmarks.peers.cutting import IMPORTANCE, cut, fit, pruner
from benchmarks.peers.data import Data
from benchmarks.peers.tasks import EPOCHS, Task
from benchmarks.peers.training import Schedule, Step, endless, train
from l0arm.costs import count_flops
from l0arm.pruning.teaching import Taught

RANKED = 30  # batches for Taylor scores, as many as l0arm.prune takes
TEACHER = 0.5  # weight of the dense network as a teacher
SPARSE = 0.5  # of the steps: sparse learning before the cut


@dataclass
class Job:
    """One network to make smaller.

    Attributes:
        task: The task.
        data: Its data.
        dense: The trained network. It must stay as it is.
        budget: Share of the operations that may be left.
        seed: Seed of batches and random numbers.
    """

    task: Task
    data: Data
    dense: nn.Module
    budget: float
    seed: int

    def __post_init__(self) -> None:
        self.batches = self.task.batches(self.data, 1000 + self.seed)
        self.stream = endless(self.batches)
        self.steps = EPOCHS * len(self.batches)
        self.example = self.task.example(self.data, 2)
        self.limit = self.budget * count_flops(self.dense, self.example)
        self.schedule = Schedule(self.steps)
        self.searched = 0.0  # seconds spent on finding a ratio, which nobody is charged for

    def step(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The loss of a batch."""
        return self.task.loss(model(batch[0]), batch[1])

    def fitted(self, make: Callable[[float], nn.Module]) -> nn.Module:
        """The network that just fits. Only the last cut counts as time of the method."""
        start = time.process_time()
        _, ratio = fit(make, self.example, self.limit)
        self.searched += time.process_time() - start
        return make(ratio)

    def finish(self, model: nn.Module, loss: Step | None = None) -> nn.Module:
        """Train for the steps that are left."""
        left = self.steps - self.schedule.step
        optimizer = self.task.optimizer(model.parameters())
        train(model, self.stream, loss or self.step, optimizer, self.schedule, left)
        return model


def torch_pruning(method: str, scope: str = "global") -> Callable[[Job], nn.Module]:
    """Cut by Torch-Pruning, then train."""

    def run(job: Job) -> nn.Module:
        return job.finish(_cut(job, method, scope))

    return run


def _cut(job: Job, method: str, scope: str = "global") -> nn.Module:
    model = copy.deepcopy(job.dense)
    if method == "taylor":
        model.eval()
        for _ in range(RANKED):
            (job.step(model, next(job.stream)) / RANKED).backward()  # type: ignore[no-untyped-call]
    return job.fitted(lambda ratio: cut(model, job.example, method, ratio, job.seed, scope))


def sparse_learning(method: str, kind: type[tp.BasePruner]) -> Callable[[Job], nn.Module]:
    """Sparse learning by a regularisation of Torch-Pruning, then cut, then train."""

    def run(job: Job) -> nn.Module:
        model = copy.deepcopy(job.dense)
        owner = pruner(model, job.example, IMPORTANCE[method](), 0.5, kind)
        train(
            model,
            job.stream,
            job.step,
            job.task.optimizer(model.parameters()),
            job.schedule,
            round(SPARSE * job.steps),
            before_step=lambda: owner.regularize(model),
        )
        return job.finish(
            job.fitted(lambda ratio: cut(model, job.example, method, ratio, job.seed))
        )

    return run


def narrow(job: Job) -> nn.Module:
    """All widths scaled by one number, from scratch, with the epochs of the others."""

    def make(ratio: float) -> nn.Module:
        torch.manual_seed(job.seed)
        return job.task.network(1.0 - ratio)

    return job.finish(job.fitted(make))


def dense(job: Job) -> nn.Module:
    """The dense network, trained as long as the others. It has no budget."""
    return job.finish(copy.deepcopy(job.dense))


def l0arm_prune(**options: Any) -> Callable[[Job], nn.Module]:
    """``l0arm.prune`` with its defaults, but for the options."""

    def run(job: Job) -> nn.Module:
        settings: dict[str, Any] = {"budget": {"flops": job.budget}} | options
        return l0arm.prune(
            job.dense,
            job.batches,
            job.task.loss,
            epochs=EPOCHS,
            optimizer=job.task.optimizer,
            seed=job.seed,
            quiet=True,
            **settings,
        ).model

    return run


def l0arm_fast(job: Job) -> nn.Module:
    """``l0arm.prune`` with a limit on measured time beside the operations."""
    share = f"{min(100.0, 160 * job.budget):g}%"  # at 25 %: 40 % of the time, 2.5 times faster
    return l0arm_prune(
        budget={"flops": job.budget, "latency": share},
        round_to=8,
        example_inputs=job.task.example(job.data, 64),
    )(job)


def taylor_with_teacher(job: Job) -> nn.Module:
    """Torch-Pruning by Taylor scores, then trained with the teacher of ``l0arm.prune``.

    A control: it shows what of the difference is due to the teacher.
    """
    return job.finish(_cut(job, "taylor"), Taught(job.task.loss, job.dense, TEACHER))


METHODS: dict[str, Callable[[Job], nn.Module]] = {
    "taylor": torch_pruning("taylor"),
    "l1": torch_pruning("l1"),
    "l0arm": l0arm_prune(),
    "l0arm-rounded": l0arm_prune(round_to=8),
    "l0arm-fast": l0arm_fast,
    "l0arm-teacher": l0arm_prune(teacher=TEACHER),
    "l0arm-gates": l0arm_prune(choice="gates"),
    "taylor-teacher": taylor_with_teacher,
    "taylor-uniform": torch_pruning("taylor", "uniform"),
    "l1-uniform": torch_pruning("l1", "uniform"),
    "taylor-heads": torch_pruning("taylor", "heads"),
    "taylor-isomorphic": torch_pruning("taylor", "isomorphic"),
    "bn": torch_pruning("bn"),
    "bn-sparse": sparse_learning("bn", tp.pruner.BNScalePruner),
    "group-norm": sparse_learning("group-norm", tp.pruner.GroupNormPruner),
    "random": torch_pruning("random"),
    "narrow": narrow,
    "dense": dense,
}
