"""The training loop of all methods: a short warm-up, then a half cosine to 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

WARM_UP = 0.05  # of all steps

Step = Callable[[nn.Module, Any], Tensor]


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """Batches without end."""
    while True:
        yield from batches


class Schedule:
    """One learning-rate schedule over all stages of a method."""

    def __init__(self, total: int) -> None:
        self.step, self.total = 0, total
        self.rates = list[float]()

    def apply(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the learning rates of the next step."""
        self.rates = self.rates or [float(group["lr"]) for group in optimizer.param_groups]
        factor = min(1.0, (self.step + 1) / max(1.0, WARM_UP * self.total))
        factor *= 0.5 * (1 + math.cos(math.pi * self.step / self.total))
        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        self.step += 1


def train(
    model: nn.Module,
    stream: Iterator[Any],
    loss: Step,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    steps: int,
    before_step: Callable[[], None] = lambda: None,
) -> None:
    """Train for a number of steps. ``before_step`` may change the gradients."""
    model.train()
    for _ in range(steps):
        schedule.apply(optimizer)
        value = loss(model, next(stream))
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        before_step()
        optimizer.step()
