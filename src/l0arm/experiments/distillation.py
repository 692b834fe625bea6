"""What a step minimises: the cross-entropy of the labels, or that beside a teacher's answers.

Distillation (Hinton, Vinyals & Dean 2015): a trained network's probabilities, softened by a
temperature T, say more about an image than its label does. The teacher answers once for all
training images, before the first step, so learning from it costs nothing per step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from l0arm.data import Dataset, Preprocess
from l0arm.experiments.errors import UserError
from l0arm.experiments.folder import RunFolder
from l0arm.experiments.recipe import Recipe, TeacherSpec
from l0arm.experiments.trained import restored


class Criterion(Protocol):
    """The loss of a batch, given which of the training images it has."""

    def __call__(self, logits: Tensor, labels: Tensor, images: Tensor) -> Tensor: ...


def of_labels(logits: Tensor, labels: Tensor, images: Tensor) -> Tensor:
    """The mean cross-entropy."""
    return F.cross_entropy(logits, labels)


@dataclass(frozen=True)
class Distilled:
    """``(1 - w) CE(labels) + w T^2 KL(p_T(teacher) || p_T(student))``, the mean over a batch.

    T^2 keeps the size of the gradient as T changes.
    """

    answers: Tensor  # the teacher's logits for all training images
    temperature: float
    weight: float

    def __call__(self, logits: Tensor, labels: Tensor, images: Tensor) -> Tensor:
        t, w = self.temperature, self.weight
        told = F.log_softmax(self.answers[images] / t, 1)
        own = F.log_softmax(logits / t, 1)
        distance = F.kl_div(own, told, reduction="batchmean", log_target=True)
        return (1 - w) * F.cross_entropy(logits, labels) + w * t * t * distance


def criterion_of(
    recipe: Recipe, folder: RunFolder, data: Dataset, preprocess: Preprocess
) -> Criterion:
    """The loss that a recipe asks for; its teacher's run lies beside the run's own."""
    spec = recipe.teacher
    if spec is None:
        return of_labels
    teacher = RunFolder(folder.path.parent.parent / spec.recipe / folder.path.name)
    _check(teacher, recipe, spec)
    network = restored(teacher, data).trainee
    network.train(False)
    with torch.no_grad():
        parts = torch.split(data.train_images, 1000)
        answers = torch.cat([network(preprocess(part)) for part in parts])
    return Distilled(answers, spec.temperature, spec.weight)


def _check(teacher: RunFolder, recipe: Recipe, spec: TeacherSpec) -> None:
    """A teacher has finished, and has seen no image that this run is measured on."""
    if not teacher.finished:
        seed = recipe.training.seed
        raise UserError(
            f"recipe '{recipe.name}' learns from '{spec.recipe}', whose run is not finished in "
            f"{teacher.path}; train it first: l0arm train {spec.recipe} --seed {seed}"
        )
    if teacher.recipe().data != recipe.data:
        raise UserError(
            f"the teacher in {teacher.path} was trained on other data than recipe "
            f"'{recipe.name}' asks for; train it with the same data settings"
        )
