"""What BC-GNJ and BC-GHS share: noisy weights under N(0, 1), and thresholds chosen by validation.

Louizos, Ullrich, Welling, "Bayesian Compression for Deep Learning", 2017.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from l0arm.contracts import Extra, GateFamily, Gates, Method, Penalty, Stage, Validate
from l0arm.estimators import Pathwise
from l0arm.gates.threshold import ScoredGates
from l0arm.gating import Gated
from l0arm.methods.noise import WeightNoise
from l0arm.methods.stages import warmed_up
from l0arm.penalties.kl import standard_normal_kl
from l0arm.precision import at_least_float32

INITIAL = -9.0  # log sigma^2 of a weight
LARGEST = math.log(0.2**2)  # of log sigma^2 in the first layer
CANDIDATES = 16  # gaps between a group's scores that are tried as thresholds


def compression_method(
    name: str,
    gate: GateFamily,
    scale_kl: Penalty,
    lam: float,
    *,
    tolerance: float,
    held_out: float,
    warm_up: float,
) -> Method:
    """The method with these scales of units, noisy weights, and thresholds chosen at the end."""
    return Method(
        name,
        gate,
        Pathwise(),
        (scale_kl, NormalKL(lam)),
        stages=(
            Stage("train", 0.9, penalty=warmed_up(warm_up)),
            Stage("settle", 0.1, enter=ChooseThresholds(tolerance)),
        ),
        after_step=clip_first_layer,
        extras=noise,
        held_out=held_out,
    )


def noise(gated: Gated) -> Mapping[str, Extra]:
    """Noise with log sigma^2 = -9 on every weight and bias."""
    return {"noise": WeightNoise(gated, INITIAL, biases=True)}


def clip_first_layer(gated: Gated, optimizer: torch.optim.Optimizer) -> None:
    """Clip sigma of the first layer's weights to 0.2. The published code clips its bias too."""
    weights = gated.extra(WeightNoise)
    _, first = next(weights.log_variances(gated))
    with torch.no_grad():
        first.clamp_(max=LARGEST)


@dataclass(frozen=True)
class NormalKL:
    """``lam`` times KL(N(theta, sigma^2) || N(0, 1)), over all weights and biases."""

    lam: float

    def __call__(self, gated: Gated, gates: Gates) -> Tensor:
        noise = gated.extra(WeightNoise)
        pairs = ((at_least_float32(w), s) for w, s in noise.log_variances(gated))
        each = [standard_normal_kl(w, s).sum() for w, s in pairs]
        return self.lam * sum(each[1:], each[0])


@dataclass(frozen=True)
class ChooseThresholds:
    """For each group, the lowest threshold that costs at most ``tolerance`` points of accuracy.

    Candidates are the middles of the widest gaps between the group's scores. The accuracy is
    measured on held-out training images. Without any, the thresholds do not change.
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
    """The middles of the widest gaps between neighbouring scores, in ascending order.

    >>> gaps(torch.tensor([0.0, 1.0, 5.0, 5.5]), count=2)
    [0.5, 3.0]
    """
    ordered = scores.sort().values
    widths = ordered[1:] - ordered[:-1]
    widest = widths.topk(min(count, len(widths))).indices.sort().values
    middles: list[float] = ((ordered[widest] + ordered[widest + 1]) / 2).tolist()
    return middles
