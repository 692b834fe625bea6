"""The mean of the weights over the steps of a stage.

Izmailov, Podoprikhin, Garipov, Vetrov, Wilson, "Averaging Weights Leads to Wider Optima and Better
Generalization", 2018: with a large learning rate, the mean of the weights generalises better than
the point that a decaying rate reaches. Step t counts in proportion to t^3 (polynomial-decay
averaging: Shamir, Zhang, "Stochastic Gradient Descent for Non-smooth Optimization", 2013), so the
first half of a stage, which still depends on the stage before, has 1/16 of the weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from l0arm.contracts import Extra, Validate
from l0arm.gating import Gated
from l0arm.methods.weights import key_of
from l0arm.precision import at_least_float32

AVERAGE = "average"
POWER = 3  # step t counts in proportion to t (t + 1) (t + 2)


class WeightAverage(Extra):
    """A mean for every parameter of the model. It is part of ``extras``, so it is saved."""

    steps: Tensor  # the number of steps in the means; -1: not averaging

    def __init__(self, gated: Gated) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor(-1))
        self.names = [name for name, _ in gated.model.named_parameters()]
        for name in self.names:
            weight = gated.model.get_parameter(name).detach()
            self.register_buffer(key_of(name), at_least_float32(torch.zeros_like(weight)))

    def pairs(self, gated: Gated) -> Iterator[tuple[Tensor, Tensor]]:
        """Every mean with its parameter."""
        for name in self.names:
            yield self.get_buffer(key_of(name)), gated.model.get_parameter(name)


def weight_average(gated: Gated) -> Mapping[str, Extra]:
    """The ``extras`` of a method that averages weights."""
    return {AVERAGE: WeightAverage(gated)}


def begin_average(gated: Gated, validate: Validate | None) -> None:
    """Start averaging. To be called when a stage is entered."""
    gated.extra(WeightAverage).steps.fill_(0)


def add_to_average(gated: Gated, optimizer: torch.optim.Optimizer) -> None:
    """Add the present weights to the mean, if averaging. To be called after every step."""
    average = gated.extra(WeightAverage)
    if average.steps < 0:
        return
    average.steps += 1
    share = (POWER + 1) / (average.steps + POWER)  # of this step in the mean so far
    with torch.no_grad():
        for mean, weight in average.pairs(gated):
            mean.lerp_(weight.to(mean.dtype), share.to(mean.dtype))


def take_average(gated: Gated, validate: Validate | None) -> None:
    """Replace the weights by their means, if there are any, and stop averaging."""
    average = gated.extra(WeightAverage)
    if average.steps > 0:
        with torch.no_grad():
            for mean, weight in average.pairs(gated):
                weight.copy_(mean)
    average.steps.fill_(-1)
