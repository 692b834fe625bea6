"""State that estimators keep from step to step: a moving baseline, or parameters tuned by Adam.

Kingma, Ba, "Adam: A Method for Stochastic Optimization", 2015.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from l0arm.estimators._base import is_finite_number
from l0arm.precision import Precise

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
MOMENTS = ("first", "second")


class Memory(Precise):
    """Named tensors as buffers: saved and moved with the model, unknown to its optimizer.

    They never fall below float32. A tensor with one entry per gate starts empty, because an
    estimator learns the number of gates at its first call. A saved tensor of any size can be loaded
    into an empty one.

    >>> memory = Memory(mean=torch.zeros(()))
    >>> memory["mean"] = torch.tensor(2.5)
    >>> dict(memory.state_dict())
    {'mean': tensor(2.5000)}
    """

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def __getitem__(self, name: str) -> Tensor:
        return self.get_buffer(name)

    def __setitem__(self, name: str, value: Tensor) -> None:
        old = self.get_buffer(name)
        if old.shape == value.shape:
            old.copy_(value.detach())  # in place: wrappers may hold a reference to the tensor
        else:
            setattr(self, name, value.detach().to(old))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        for name, own in self._buffers.items():
            saved = state_dict.get(prefix + name)
            if own is not None and saved is not None and 0 in (own.numel(), saved.numel()):
                self._buffers[name] = own.new_zeros(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)


class MovingMean(Memory):
    """A moving mean of past losses, as a baseline.

    Reduces variance without bias: it depends on past losses only.

    >>> baseline = MovingMean(decay=0.9)
    >>> baseline.update(torch.tensor(3.0))
    >>> baseline.value
    tensor(3.)
    """

    def __init__(self, decay: float) -> None:
        super().__init__(mean=torch.zeros(()), steps=torch.zeros((), dtype=torch.int64))
        if not (is_finite_number(decay) and 0.0 <= decay < 1.0):
            raise ValueError(
                "decay is the share of the past in a moving mean and must lie in [0, 1); got "
                f"{decay!r}"
            )
        self.decay = decay

    @property
    def value(self) -> Tensor:
        """The mean of the losses so far. 0 before the first."""
        return self["mean"]

    def update(self, loss: Tensor) -> None:
        """``mean += (1 - decay) (loss - mean)``, and the plain mean over the first steps.

        Under ``torch.no_grad`` (evaluation) nothing changes.
        """
        if not torch.is_grad_enabled():
            return
        self["steps"] = self["steps"] + 1
        rate = torch.clamp(1 / self["steps"], min=1 - self.decay)
        mean = self["mean"]
        self["mean"] = mean + rate * (loss.detach().to(mean) - mean)


class TunedParameters(Memory):
    """Parameters of an estimator that descend the square of its estimate s, by Adam.

    E[s^2] is the variance plus E[s]^2, and E[s] does not depend on them, so this reduces the
    variance. Adam, because the scale of s^2 is unknown.
    """

    def __init__(self, **parameters: Tensor) -> None:
        moments = {
            f"{name}_{moment}": torch.zeros_like(value)
            for name, value in parameters.items()
            for moment in MOMENTS
        }
        super().__init__(**parameters, **moments, steps=torch.zeros((), dtype=torch.int64))

    def resize(self, **parameters: Tensor) -> None:
        """New values of another shape, with fresh moments."""
        for name, value in parameters.items():
            self[name] = value
            for moment in MOMENTS:
                self[f"{name}_{moment}"] = torch.zeros_like(value)

    def descend(self, gradients: dict[str, Tensor], rates: dict[str, float]) -> None:
        """One step of Adam, with a step size for each parameter."""
        steps = int(self["steps"]) + 1
        self["steps"] = self["steps"] + 1
        for name, gradient in gradients.items():
            gradient = gradient.detach().to(self[name])
            first = BETA_1 * self[f"{name}_first"] + (1 - BETA_1) * gradient
            second = BETA_2 * self[f"{name}_second"] + (1 - BETA_2) * gradient.square()
            self[f"{name}_first"], self[f"{name}_second"] = first, second
            scale = (second / (1 - BETA_2**steps)).sqrt() + EPSILON
            self[name] = self[name] - rates[name] * first / (1 - BETA_1**steps) / scale


def checked_rate(rate: float) -> float:
    """``rate`` itself, if it is a valid step size."""
    if not (is_finite_number(rate) and rate >= 0):
        raise ValueError(f"rate is the step of the tuning, >= 0 (0: no tuning); got {rate!r}")
    return rate
