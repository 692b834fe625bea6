"""An estimator's own parameters descend the square of its estimate, which is its variance but for
a constant: E[s]^2 does not depend on them. One step of Adam, since the scale of s^2 is unknown.

Kingma, Ba, "Adam: A Method for Stochastic Optimization", 2015.
"""

from __future__ import annotations

import torch
from torch import Tensor

from l0arm.estimators._finite import finite
from l0arm.estimators._memory import Memory

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8


def tuned(**parameters: Tensor) -> Memory:
    """A memory of these parameters and their moments."""
    moments = {
        f"{name}_{moment}": torch.zeros_like(value)
        for name, value in parameters.items()
        for moment in ("first", "second")
    }
    return Memory(**parameters, **moments, steps=torch.zeros((), dtype=torch.int64))


def resize(memory: Memory, **parameters: Tensor) -> None:
    """New values of another shape, with fresh moments."""
    for name, value in parameters.items():
        memory[name] = value
        for moment in ("first", "second"):
            memory[f"{name}_{moment}"] = torch.zeros_like(value)


def descend(memory: Memory, gradients: dict[str, Tensor], rates: dict[str, float]) -> None:
    """One step of Adam, of the given size for each parameter."""
    steps = int(memory["steps"]) + 1
    memory["steps"] = memory["steps"] + 1
    for name, gradient in gradients.items():
        gradient = gradient.detach().to(memory[name])
        first = BETA_1 * memory[f"{name}_first"] + (1 - BETA_1) * gradient
        second = BETA_2 * memory[f"{name}_second"] + (1 - BETA_2) * gradient.square()
        memory[f"{name}_first"], memory[f"{name}_second"] = first, second
        scale = (second / (1 - BETA_2**steps)).sqrt() + EPSILON
        memory[name] = memory[name] - rates[name] * first / (1 - BETA_1**steps) / scale


def checked_rate(rate: float) -> float:
    """``rate`` itself, if it is one."""
    if not (finite(rate) and rate >= 0):
        raise ValueError(f"rate is the step of the tuning, >= 0 (0: no tuning); got {rate!r}")
    return rate
