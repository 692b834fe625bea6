"""What BC-GNJ and BC-GHS share: noisy weights under N(0, 1), and thresholds chosen on images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from l0arm.contracts import Extra, Validate
from l0arm.gates.threshold import ScoredGates
from l0arm.gating import Gated
from l0arm.methods.noise import WeightNoise
from l0arm.penalties.kl import standard_normal_kl
from l0arm.precision import at_least_float32

INITIAL = -9.0  # log sigma^2 of a weight
LARGEST = math.log(0.2**2)  # of log sigma^2 in the first layer
CANDIDATES = 16  # gaps of a group's scores that are tried


def noise(gated: Gated) -> Mapping[str, Extra]:
    """log sigma^2 = -9 for every weight and bias."""
    return {"noise": WeightNoise(gated, INITIAL, biases=True)}


def clip_first_layer(gated: Gated, optimizer: torch.optim.Optimizer) -> None:
    """sigma <= 0.2 in the first layer, as published: it has the most noise to gain from."""
    weights = gated.extra(WeightNoise)
    _, first = next(weights.log_variances(gated))
    with torch.no_grad():
        first.clamp_(max=LARGEST)


@dataclass(frozen=True)
class NormalKL:
    """``lam`` times KL(N(theta, sigma^2) || N(0, 1)), over all weights and biases."""

    lam: float

    def __call__(self, gated: Gated, gates: Any) -> Tensor:
        noise = gated.extra(WeightNoise)
        pairs = ((at_least_float32(w), s) for w, s in noise.log_variances(gated))
        each = [standard_normal_kl(w, s).sum() for w, s in pairs]
        return self.lam * sum(each[1:], each[0])


@dataclass(frozen=True)
class ChooseThresholds:
    """Group by group, the lowest threshold that costs at most ``tolerance`` points of accuracy.

    Tried are the middles of the widest gaps between the group's scores; the accuracy is that of
    held-out training images. Without any, the thresholds stay as they are.
    """

    tolerance: float = 0.1

    def __post_init__(self) -> None:
        if not (isinstance(self.tolerance, Real) and 0 <= self.tolerance <= 100):
            raise ValueError(
                "tolerance is how many points of accuracy a threshold may cost, from 0 to 100; got "
                f"{self.tolerance!r}"
            )

    def __call__(self, gated: Gated, validate: Validate | None) -> None:
        if validate is None:
            return
        gates = gated.gates
        assert isinstance(gates, ScoredGates)
        with torch.no_grad():
            thresholds = gates.thresholds
            thresholds.fill_(float(gates.score.max()) + 1.0)
            wanted = validate() - self.tolerance
            for number in range(len(gated.groups)):
                span = gated.layout.span(number)
                for threshold in [*gaps(gates.score[span]), float(gates.score.max()) + 1.0]:
                    thresholds[span] = threshold
                    if validate() >= wanted:
                        break


def gaps(scores: Tensor, count: int = CANDIDATES) -> list[float]:
    """The middles of the widest gaps between neighbouring scores, from the lowest.

    >>> gaps(torch.tensor([0.0, 1.0, 5.0, 5.5]), count=2)
    [0.5, 3.0]
    """
    ordered = scores.sort().values
    widths = ordered[1:] - ordered[:-1]
    widest = widths.topk(min(count, len(widths))).indices.sort().values
    middles: list[float] = ((ordered[widest] + ordered[widest + 1]) / 2).tolist()
    return middles
