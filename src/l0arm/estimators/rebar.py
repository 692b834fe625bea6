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
from l0arm.estimators._base import BinaryEstimator, is_finite_number
from l0arm.estimators._memory import TunedParameters, checked_rate
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
from l0arm.precision import at_least_float32

NAMES = ("c", "log_temperature")


@dataclass(frozen=True)
class REBAR(BinaryEstimator):
    """``(f(b) - c f(y'))(b - pi) + c d f(y)/d logit - c d f(y')/d logit``.

    ``y = sigmoid(zeta / temperature)`` with zeta = logit pi + logit u, b = 1[zeta > 0], and y'
    likewise from a zeta drawn again given b. Three evaluations of f. All units are computed at y
    and y': f runs masked, in the time of the dense network.

    Args:
        temperature: Its initial value.
        c: The initial weight of the control variate.
        rate: The step of Adam by which c and the temperature descend the squared estimate after
            every call. This takes second derivatives of f. 0: they stay as they are.

    Raises:
        ValueError: An option is not finite or out of range.

    Example:
        >>> import torch
        >>> from l0arm.estimators import REBAR
        >>> probs = torch.tensor([0.3, 0.5], requires_grad=True)
        >>> estimator = REBAR()
        >>> value = estimator(lambda z: (z**2).sum(), probs, torch.Generator().manual_seed(0))
        >>> estimator.state["c"].item() != 1.0  # tuned by one step
        True
    """

    temperature: float = 2 / 3
    c: float = 1.0
    rate: float = 0.01
    state: TunedParameters = field(init=False, compare=False, repr=False)
    forwards = 3
    drops = False

    def __post_init__(self) -> None:
        if not is_finite_number(self.c):
            raise ValueError(f"c must be a finite number, got {self.c!r}; 1 is a usual start")
        checked_rate(self.rate)
        log_temperature = torch.tensor(math.log(checked_temperature(self.temperature)))
        start = TunedParameters(c=torch.tensor(float(self.c)), log_temperature=log_temperature)
        object.__setattr__(self, "state", start)

    @property
    def backwards(self) -> int:
        """Two for the slopes, one to the weights, and the tuning.

        The tuning differentiates through both slopes. Counted in operations, that is four more.
        """
        return 7 if self.rate else 3

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        probs = probabilities(gates)
        u, v = uniform_like(probs, generator), uniform_like(probs, generator)
        if self.rate == 0 or not torch.is_grad_enabled():
            return self.at(f, gates, u, v)
        parameters = {name: self.state[name].clone().requires_grad_() for name in NAMES}
        value, s = self._estimate(f, probs.detach(), u, v, **parameters)
        gradients = torch.autograd.grad(s.square().sum(), list(parameters.values()))
        self.state.descend(
            dict(zip(NAMES, gradients, strict=True)), dict.fromkeys(NAMES, self.rate)
        )
        return surrogate(value, s.detach(), gates)

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor, v: Tensor) -> Tensor:
        """f(b) with the estimate attached, for given noise and the present parameters."""
        state = self.state
        pi = probabilities(gates).detach()
        value, s = self._estimate(f, pi, u, v, state["c"], state["log_temperature"])
        return surrogate(value, s, gates)

    def _estimate(
        self, f: Objective, pi: Tensor, u: Tensor, v: Tensor, c: Tensor, log_temperature: Tensor
    ) -> tuple[Tensor, Tensor]:
        """f(b) with its graph, and s, with a graph to c and the temperature if they require one."""
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
