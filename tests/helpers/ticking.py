"""A clock that only layers move: times that are known exactly, on any machine."""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from l0arm.gating import Group, Slice


class Clock:
    """Seconds since the tests began, as far as layers say."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, milliseconds: float) -> None:
        self.now += milliseconds / 1e3


CLOCK = Clock()  # copies of a model share it, as they share the wall clock


class Ticking(nn.Linear):
    """Takes ``always + when_open * (share of its weights that is left)`` milliseconds."""

    calls: ClassVar[list[int]] = []  # weights, at each call
    hooks: ClassVar[list[int]] = []  # on the module, at each call

    def __init__(self, inputs: int, outputs: int, always: float, when_open: float) -> None:
        super().__init__(inputs, outputs)
        self.full, self.always, self.when_open = inputs * outputs, always, when_open

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(self.weight.numel())
        self.hooks.append(len(self._forward_pre_hooks))
        CLOCK.pass_by(self.always + self.when_open * self.weight.numel() / self.full)
        return super().forward(x)


class Network(nn.Module):
    """Two gated layers of units between three, and something that always takes as long."""

    def __init__(self, between: float = 0.5) -> None:
        super().__init__()
        self.first = Ticking(4, 40, 0.25, 2.0)
        self.second = Ticking(40, 20, 0.125, 4.0)
        self.third = Ticking(20, 3, 1.0, 0.75)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        CLOCK.pass_by(self.between)
        return self.third(F.relu(self.second(F.relu(self.first(x)))))

    def groups(self) -> list[Group]:
        names = (("first", "second", 40), ("second", "third", 20))
        return [
            Group(
                name,
                units,
                reads=(Slice(f"{reader}.weight", 1),),
                makes=(Slice(f"{name}.weight", 0), Slice(f"{name}.bias", 0)),
            )
            for name, reader, units in names
        ]
