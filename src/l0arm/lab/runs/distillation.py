"""The data loss of a step: cross-entropy with the labels, or distillation from a teacher.

Distillation (Hinton, Vinyals & Dean 2015): the probabilities of a trained network, softened by a
temperature T, say more about an image than its label. The teacher's logits are computed once before
the first step if the images are always shown unchanged, and for every offset if they are shifted by
few pixels. With crops and flips the teacher runs at every step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm.lab.data import Dataset, Preprocess, shifted
from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import Recipe, TeacherSpec
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.session import restored_session

LARGEST_CACHE = 2**28  # bytes of logits that are computed in advance for shifted images

Criterion = Callable[[Tensor], Tensor]  # logits of a batch -> loss


class DataLoss(Protocol):
    """Makes the criterion of a batch.

    It is given the indices of the images, the preprocessed images, the labels, and the offsets
    ``(2, N)`` of shifted images.
    """

    def __call__(
        self, which: Tensor, x: Tensor, labels: Tensor, offsets: Tensor | None = None
    ) -> Criterion: ...


class Teacher(Protocol):
    """Logits for a batch, given what a ``DataLoss`` is given but the labels."""

    def __call__(self, which: Tensor, x: Tensor, offsets: Tensor | None = None) -> Tensor: ...


def label_loss(
    which: Tensor, x: Tensor, labels: Tensor, offsets: Tensor | None = None
) -> Criterion:
    """The mean cross-entropy with the labels."""
    return partial(F.cross_entropy, target=labels)


@dataclass(frozen=True)
class DistillationLoss:
    """``(1 - w) CE(labels) + w T^2 KL(p_T(teacher) || p_T(student))``, the mean over a batch.

    The factor T^2 keeps the size of the gradient the same for all T.
    """

    teacher: Teacher
    temperature: float
    weight: float

    def __call__(
        self, which: Tensor, x: Tensor, labels: Tensor, offsets: Tensor | None = None
    ) -> Criterion:
        t, w = self.temperature, self.weight
        target = F.log_softmax(self.teacher(which, x, offsets) / t, 1)

        def criterion(logits: Tensor) -> Tensor:
            student = F.log_softmax(logits / t, 1)
            distance = F.kl_div(student, target, reduction="batchmean", log_target=True)
            return (1 - w) * F.cross_entropy(logits, labels) + w * t * t * distance

        return criterion


@dataclass(frozen=True)
class CachedTeacher:
    """A teacher's logits for all training images, computed in advance."""

    logits: Tensor

    def __call__(self, which: Tensor, x: Tensor, offsets: Tensor | None = None) -> Tensor:
        return self.logits[which]


@dataclass(frozen=True)
class CachedShifts:
    """A teacher's logits for all training images at all offsets, computed in advance."""

    logits: Tensor  # (2 pixels + 1, 2 pixels + 1, images, classes)
    pixels: int  # the largest offset

    def __call__(self, which: Tensor, x: Tensor, offsets: Tensor | None = None) -> Tensor:
        assert offsets is not None
        row, column = offsets + self.pixels
        return self.logits[row, column, which]


@dataclass(frozen=True)
class TeacherNetworks:
    """The mean logits of one or more networks, which run on every batch."""

    networks: tuple[nn.Module, ...]

    def __call__(self, which: Tensor, x: Tensor, offsets: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return torch.stack([network(x) for network in self.networks]).mean(0)


def data_loss_of(
    recipe: Recipe, folder: RunFolder, data: Dataset, preprocess: Preprocess
) -> DataLoss:
    """The data loss of a recipe. The runs of its teachers are looked for beside the run's own."""
    spec = recipe.teacher
    if spec is None:
        return label_loss
    runs = teachers_of(recipe, spec, folder)
    for seed, run in runs.items():
        _check_teacher(run, recipe, spec, seed)
    networks = [cast(nn.Module, restored_session(run, data).trainee) for run in runs.values()]
    device = data.train_images.device
    live = TeacherNetworks(tuple(network.to(device).eval() for network in networks))
    teacher = live if recipe.data.augment else _in_advance(live, recipe, data, preprocess)
    return DistillationLoss(teacher, spec.temperature, spec.weight)


def _in_advance(
    live: TeacherNetworks, recipe: Recipe, data: Dataset, preprocess: Preprocess
) -> Teacher:
    """The teacher with its logits for all images, unless it is less work to run it in the steps."""
    chunks = torch.split(torch.arange(len(data.train_images)), 1000)

    def logits(row: int, column: int) -> Tensor:
        parts = []
        for which in chunks:
            offsets = torch.tensor([[row], [column]]).expand(2, len(which))
            images = shifted(data.train_images[which], offsets.to(data.train_images.device))
            parts.append(live(which, preprocess(images)))
        return torch.cat(parts)

    pixels = recipe.data.shift
    if not pixels:
        return CachedTeacher(logits(0, 0))
    offsets = range(-pixels, pixels + 1)
    size = len(offsets) ** 2 * len(data.train_images) * data.classes * 4
    if len(offsets) ** 2 >= recipe.training.epochs or size > LARGEST_CACHE:
        return live
    rows = [torch.stack([logits(row, column) for column in offsets]) for row in offsets]
    return CachedShifts(torch.stack(rows), pixels)


def teachers_of(recipe: Recipe, spec: TeacherSpec, folder: RunFolder) -> dict[int, RunFolder]:
    """The teachers' runs by seed. The first one's folder has the same name as the run's own."""
    beside, first = folder.path.parent.parent / spec.recipe, recipe.training.seed
    others = range(first + 1, first + spec.runs)
    names = {first: folder.path.name} | {seed: f"seed-{seed}" for seed in others}
    return {seed: RunFolder(beside / name) for seed, name in names.items()}


def _check_teacher(teacher: RunFolder, recipe: Recipe, spec: TeacherSpec, seed: int) -> None:
    """A teacher must have finished, and must not have seen images that test this run."""
    if not teacher.finished:
        raise UserError(
            f"recipe '{recipe.name}' learns from '{spec.recipe}', whose run is not finished in "
            f"{teacher.path}; train it first, on the same data: l0arm train {spec.recipe} --seed "
            f"{seed} --run-dir {teacher.path}"
        )
    if teacher.recipe().data != recipe.data:
        raise UserError(
            f"the teacher in {teacher.path} was trained on other data than recipe "
            f"'{recipe.name}' asks for; train it with the same data settings"
        )
