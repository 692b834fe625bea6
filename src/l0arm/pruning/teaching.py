"""The dense network as a teacher of the small one (Hinton, Vinyals & Dean 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm.pruning.task import Criterion

TEMPERATURE = 4.0


def distance(student: Tensor, teacher: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """``T^2 KL(p_T(teacher) || p_T(student))`` of class scores, the mean over all predictions.

    The factor T^2 keeps the size of the gradient the same for all T.

    Args:
        student: Class scores, with the classes in the last dimension.
        teacher: As many of another network.
        temperature: T. Scores are divided by it before the softmax.

    Returns:
        A scalar.

    Example:
        >>> distance(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]])).item()
        0.0
    """
    classes = student.shape[-1]
    mine = F.log_softmax(student.reshape(-1, classes) / temperature, 1)
    theirs = F.log_softmax(teacher.reshape(-1, classes) / temperature, 1)
    divergence = F.kl_div(mine, theirs, reduction="batchmean", log_target=True)
    return temperature**2 * divergence


@dataclass(frozen=True)
class Taught:
    """``(1 - w) loss + w distance to the teacher``, as a step on batches ``(x, y)``.

    It acts where the outputs are class scores: the targets are class numbers, one for each row of
    the last dimension of the outputs. Elsewhere it is the plain loss.

    Attributes:
        criterion: The loss of ``(output, target)``.
        teacher: The dense network. It runs in eval mode and without gradients.
        weight: w.
        temperature: That of ``distance``.
    """

    criterion: Criterion
    teacher: nn.Module
    weight: float
    temperature: float = TEMPERATURE

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        output = model(batch[0])
        loss = self.criterion(output, batch[1])
        if not are_class_scores(output, batch[1]):
            return loss
        with torch.no_grad():
            theirs = self.teacher(batch[0])
        return (1 - self.weight) * loss + self.weight * distance(output, theirs, self.temperature)


def are_class_scores(output: Any, target: Any) -> bool:
    """Whether the targets are class numbers for the last dimension of the outputs.

    Example:
        >>> are_class_scores(torch.zeros(5, 3), torch.tensor([0, 2, 1, 1, 0]))
        True
        >>> are_class_scores(torch.zeros(5, 3), torch.zeros(5, 3))
        False
    """
    return (
        isinstance(output, Tensor)
        and isinstance(target, Tensor)
        and output.is_floating_point()
        and target.dtype in (torch.int64, torch.int32, torch.uint8)
        and output.dim() >= 2
        and output.shape[:-1] == target.shape
    )
