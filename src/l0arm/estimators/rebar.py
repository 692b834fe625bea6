"""REBAR: REINFORCE with the concrete relaxation of f as its control variate.

Tucker, Mnih, Maddison, Lawson, Sohl-Dickstein, "REBAR: Low-variance, unbiased gradient estimates
for discrete latent variable models", 2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import BinaryEstimator
from l0arm.estimators._finite import finite
from l0arm.estimators._memory import Memory
from l0arm.estimators._relaxation import (
    checked_temperature,
    conditional_logistic,
    conditional_slope,
    live,
    logistic,
    open_gates,
    relaxed,
    slope_of,
)
from l0arm.estimators._surrogate import loss_of, probabilities, surrogate, uniform_like
from l0arm.estimators._tuning import checked_rate, descend, tuned
from l0arm.precision import at_least_float32


@dataclass(frozen=True)
class REBAR(BinaryEstimator):
    """``(f(b) - c f(y'))(b - pi) + c d f(y)/d logit - c d f(y')/d logit``.

    ``y = sigmoid(zeta / temperature)`` with zeta = logit pi + logit u, b = 1[zeta > 0], and y'
    likewise from a zeta drawn anew given b. c and the temperature descend the squared estimate
    after every step (Adam with step ``rate``; 0: they stay), which asks f for second derivatives.
    f(y) and f(y') are dense: they run masked, and take the time of the dense network.

    >>> probs = torch.tensor([0.3, 0.5], requires_grad=True)
    >>> value = REBAR()(lambda z: (z**2).sum(), probs, torch.Generator().manual_seed(0))
    """

    temperature: float = 2 / 3  # at the start
    c: float = 1.0  # at the start
    rate: float = 0.01
    state: Memory = field(init=False, compare=False, repr=False)
    forwards = 3
    drops = False

    @property
    def backwards(self) -> int:
        """Two slopes and one to the weights; what tunes c is derived through both slopes.

        That is worth four more, by the operations it takes.
        """
        return 7 if self.rate else 3

    def __post_init__(self) -> None:
        if not finite(self.c):
            raise ValueError(f"c must be a finite number, got {self.c!r}; 1 is a usual start")
        checked_rate(self.rate)
        log_temperature = torch.tensor(math.log(checked_temperature(self.temperature)))
        memory = tuned(c=torch.tensor(float(self.c)), log_temperature=log_temperature)
        object.__setattr__(self, "state", memory)

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        probs = probabilities(gates)
        u, v = uniform_like(probs, generator), uniform_like(probs, generator)
        if self.rate == 0 or not torch.is_grad_enabled():
            return self.at(f, gates, u, v)
        names = ("c", "log_temperature")
        parameters = {name: self.state[name].clone().requires_grad_() for name in names}
        value, s = self._estimate(f, probs.detach(), u, v, **parameters)
        gradients = torch.autograd.grad(s.square().sum(), list(parameters.values()))
        descend(
            self.state, dict(zip(names, gradients, strict=True)), dict.fromkeys(names, self.rate)
        )
        return surrogate(value, s.detach(), gates)

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor, v: Tensor) -> Tensor:
        """The estimate for given noise, with c and the temperature as they stand."""
        state = self.state
        pi = probabilities(gates).detach()
        value, s = self._estimate(f, pi, u, v, state["c"], state["log_temperature"])
        return surrogate(value, s, gates)

    def _estimate(
        self, f: Objective, pi: Tensor, u: Tensor, v: Tensor, c: Tensor, log_temperature: Tensor
    ) -> tuple[Tensor, Tensor]:
        """f(b) with its graph, and s with a graph to c and the temperature if they ask for one."""
        b = open_gates(u, pi)
        value = f(b)
        temperature = log_temperature.to(pi).exp()
        zeta, zeta_b = logistic(pi, u), conditional_logistic(pi, b, v)
        _, slope = _relaxation(f, zeta, temperature)
        loss_b, slope_b = _relaxation(f, zeta_b, temperature)
        slope_b = slope_b * conditional_slope(pi, b, zeta_b)
        s = (loss_of(value) - c * loss_b) * (b - pi) + c * (slope - slope_b)
        return value, torch.where(live(pi), s, 0.0)


def _relaxation(f: Objective, zeta: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """``f(y)`` and its derivative in zeta."""
    y, dy = relaxed(zeta, temperature)
    y = y if y.requires_grad else y.requires_grad_()
    value = f(y)
    slope = slope_of(value, y, create_graph=temperature.requires_grad)
    value = at_least_float32(value)
    return value if temperature.requires_grad else value.detach(), slope * dy
