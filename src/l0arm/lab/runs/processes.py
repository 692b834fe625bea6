"""A run in several processes: they check that they agree, and share minibatches and gradients."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import l0arm
from l0arm.distributed import Team, WholeLoss
from l0arm.distributed.loss import Draws
from l0arm.gating import Loss
from l0arm.gating.step import Closure
from l0arm.lab.data import Dataset
from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import Recipe
from l0arm.lab.runs.building import Trainee
from l0arm.lab.runs.folder import flat

StepLoss = Callable[[Closure, float, torch.Generator | None], Loss]


def check_same_run(team: Team, recipe: Recipe, data: Dataset) -> None:
    """Refuse processes with different recipes, code or data, and name the first difference."""
    if team.size == 1:
        return
    code = sorted(Path(l0arm.__file__).parent.rglob("*.py"))
    facts = flat(recipe.model_dump()) | {
        "version of l0arm": l0arm.__version__,
        "version of torch": torch.__version__,
        "code of l0arm": _digest(path.read_bytes() for path in code),
        "training images": len(data.train_labels),
        "labels": _digest([data.train_labels.numpy().tobytes()]),
    }
    everyone = [json.loads(text) for text in team.texts(json.dumps(facts))]
    for rank, other in enumerate(everyone):
        for key in sorted(everyone[0].keys() | other.keys()):
            mine, theirs = everyone[0].get(key), other.get(key)
            if mine != theirs:
                raise UserError(
                    f"process {rank} was started with another run than process 0: {key} is "
                    f"{theirs!r}, not {mine!r}; start all with the same command"
                )


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def on_first_process(team: Team, action: Callable[[], object]) -> None:
    """Run an action in the first process. If it raises UserError, all processes raise it."""
    message = ""
    if team.first:
        try:
            action()
        except UserError as error:
            message = str(error)
    message = team.texts(message)[0] if team.size > 1 else message
    if message:
        raise UserError(message)


def share_of(batch: Tensor, team: Team) -> tuple[Tensor, int]:
    """This process's part of a minibatch, and how many examples of it count.

    The sizes of the parts differ by at most one. A process without any example computes on the
    whole batch with a count of 0, because every process has to take part in every step.

    >>> [share_of(torch.arange(5), Team(rank, 2)) for rank in (0, 1)]
    [(tensor([0, 2, 4]), 3), (tensor([1, 3]), 2)]
    >>> share_of(torch.arange(1), Team(1, 2))
    (tensor([0]), 0)
    """
    share = batch[team.rank :: team.size]
    return (share, len(share)) if len(share) else (batch, 0)


def own_seed(seed: int, *place: int) -> int:
    """A seed of 63 bits for a process, step or draw of a run, different for each place."""
    text = "/".join(str(part) for part in (seed, *place))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def step_loss(trainee: Trainee, team: Team, draws: Draws) -> StepLoss:
    """The loss of a minibatch. Its gradients are averaged over the processes."""
    if team.size == 1:
        return lambda closure, weight, generator: trainee.loss(closure)
    assert isinstance(trainee, nn.Module)
    return DistributedDataParallel(_Anchored(trainee, draws), find_unused_parameters=True)


class _Anchored(WholeLoss):
    """A loss whose gradients DDP sums in the same order at every step, also after a resume.

    After the first step DDP arranges its buckets anew, unless it looks for unused parameters. Sums
    over three or more processes would then differ in their last bits. DDP warns if it finds no
    unused parameter, so there is one.
    """

    def __init__(self, trainee: nn.Module, draws: Draws) -> None:
        super().__init__(trainee, draws)
        self.unused = nn.Parameter(torch.zeros((), device=next(trainee.parameters()).device))
