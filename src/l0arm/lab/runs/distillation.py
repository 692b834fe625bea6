"""What a step minimises: the cross-entropy of the labels, or that beside a teacher's answers.

Distillation (Hinton, Vinyals & Dean 2015): a trained network's probabilities, softened by a
temperature T, say more about an image than its label does. Where images stay as they are, the
teacher answers once for all of them, before the first step, so learning from it costs nothing per
step; images that move it has to see each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm.lab.data import Dataset, Preprocess
from l0arm.lab.recipes.recipe import Recipe, TeacherSpec
from l0arm.lab.runs.errors import UserError
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.trained import restored

Criterion = Callable[[Tensor], Tensor]  # the loss of a batch, given the network's logits


class Lesson(Protocol):
    """What is to be learned from a batch: which training images, as they are shown, labels."""

    def __call__(self, which: Tensor, x: Tensor, labels: Tensor) -> Criterion: ...


class Teacher(Protocol):
    """Logits for a batch: which training images they are, and as they are shown."""

    def __call__(self, which: Tensor, x: Tensor) -> Tensor: ...


def of_labels(which: Tensor, x: Tensor, labels: Tensor) -> Criterion:
    """The mean cross-entropy."""
    return partial(F.cross_entropy, target=labels)


@dataclass(frozen=True)
class Distilled:
    """``(1 - w) CE(labels) + w T^2 KL(p_T(teacher) || p_T(student))``, the mean over a batch.

    T^2 keeps the size of the gradient as T changes.
    """

    teacher: Teacher
    temperature: float
    weight: float

    def __call__(self, which: Tensor, x: Tensor, labels: Tensor) -> Criterion:
        t, w = self.temperature, self.weight
        told = F.log_softmax(self.teacher(which, x) / t, 1)

        def criterion(logits: Tensor) -> Tensor:
            own = F.log_softmax(logits / t, 1)
            distance = F.kl_div(own, told, reduction="batchmean", log_target=True)
            return (1 - w) * F.cross_entropy(logits, labels) + w * t * t * distance

        return criterion


@dataclass(frozen=True)
class Remembered:
    """A teacher's answers for all training images, which are always shown as they are."""

    answers: Tensor

    def __call__(self, which: Tensor, x: Tensor) -> Tensor:
        return self.answers[which]


@dataclass(frozen=True)
class Asked:
    """Networks that look at every batch; their mean logits are the answer."""

    networks: tuple[nn.Module, ...]

    def __call__(self, which: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.stack([network(x) for network in self.networks]).mean(0)


def lesson_of(recipe: Recipe, folder: RunFolder, data: Dataset, preprocess: Preprocess) -> Lesson:
    """What a recipe has to be learned; its teachers' runs lie beside the run's own."""
    spec = recipe.teacher
    if spec is None:
        return of_labels
    runs = teachers_of(recipe, spec, folder)
    for seed, run in runs.items():
        _check(run, recipe, spec, seed)
    networks = [cast(nn.Module, restored(run, data).trainee) for run in runs.values()]
    asked = Asked(tuple(network.to(data.train_images.device).eval() for network in networks))
    if recipe.data.augment or recipe.data.shift:
        return Distilled(asked, spec.temperature, spec.weight)
    every = torch.split(torch.arange(len(data.train_images)), 1000)
    answers = torch.cat([asked(i, preprocess(data.train_images[i])) for i in every])
    return Distilled(Remembered(answers), spec.temperature, spec.weight)


def teachers_of(recipe: Recipe, spec: TeacherSpec, folder: RunFolder) -> dict[int, RunFolder]:
    """The runs to learn from by their seeds; the first one's folder is named as the run's own."""
    beside, first = folder.path.parent.parent / spec.recipe, recipe.training.seed
    others = range(first + 1, first + spec.runs)
    names = {first: folder.path.name} | {seed: f"seed-{seed}" for seed in others}
    return {seed: RunFolder(beside / name) for seed, name in names.items()}


def _check(teacher: RunFolder, recipe: Recipe, spec: TeacherSpec, seed: int) -> None:
    """A teacher has finished, and has seen no image that this run is measured on."""
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
