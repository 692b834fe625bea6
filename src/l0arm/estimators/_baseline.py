"""A moving mean of past losses: a baseline that takes variance away and, being past, no bias in."""

from __future__ import annotations

import torch
from torch import Tensor

from l0arm.estimators._finite import finite
from l0arm.estimators._memory import Memory


def moving_mean() -> Memory:
    """No loss seen yet."""
    return Memory(mean=torch.zeros(()), steps=torch.zeros((), dtype=torch.int64))


def baseline(memory: Memory) -> Tensor:
    """The mean of the losses seen so far; 0 before the first."""
    return memory["mean"]


def remember(memory: Memory, loss: Tensor, decay: float) -> None:
    """``mean += (1 - decay) (loss - mean)``; over the first steps, the plain mean of what was seen.

    Outside of training (no graph is built) nothing is remembered.
    """
    if not torch.is_grad_enabled():
        return
    memory["steps"] = memory["steps"] + 1
    rate = torch.clamp(1 / memory["steps"], min=1 - decay)
    mean = memory["mean"]
    memory["mean"] = mean + rate * (loss.detach().to(mean) - mean)


def checked_decay(decay: float) -> float:
    """``decay`` itself, if a moving mean can use it."""
    if not (finite(decay) and 0.0 <= decay < 1.0):
        raise ValueError(
            f"decay is the share of the past in a moving mean and must lie in [0, 1); got {decay!r}"
        )
    return decay
