"""The mean of the weights over the steps of a stage.

Izmailov, Podoprikhin, Garipov, Vetrov, Wilson, "Averaging Weights Leads to Wider Optima and Better
Generalization", 2018: the middle of where a large learning rate wanders generalises better than
the point to which a small one descends. The steps count by t^3 (polynomial decay, Shamir & Zhang
2013): of a stage whose first steps still come from elsewhere, the first half has one part in 16.
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
    """One mean for every parameter of the model; kept in ``extras``, so it is saved with phi."""

    steps: Tensor  # how many the means are of; -1: none are taken now

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
    """To enter a stage with: from here on every step counts."""
    _average(gated).steps.fill_(0)


def add_to_average(gated: Gated, optimizer: torch.optim.Optimizer) -> None:
    """After a step: the weights as they are now join the mean, if one is being taken."""
    average = _average(gated)
    if average.steps < 0:
        return
    average.steps += 1
    share = (POWER + 1) / (average.steps + POWER)  # of this step in the mean of all so far
    with torch.no_grad():
        for mean, weight in average.pairs(gated):
            mean.lerp_(weight.to(mean.dtype), share.to(mean.dtype))


def take_average(gated: Gated, validate: Validate | None) -> None:
    """To enter a stage with: the weights become their means, if there are any."""
    average = _average(gated)
    if average.steps > 0:
        with torch.no_grad():
            for mean, weight in average.pairs(gated):
                weight.copy_(mean)
    average.steps.fill_(-1)


def _average(gated: Gated) -> WeightAverage:
    return gated.extra(WeightAverage)
