"""RELAX: REINFORCE with a small trained network as its control variate.

Grathwohl, Choi, Wu, Roeder, Duvenaud, "Backpropagation through the Void: Optimizing control
variates for black-box gradient estimation", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import BinaryEstimator
from l0arm.estimators._memory import TunedParameters, checked_rate
from l0arm.estimators._relaxation import (
    checked_temperature,
    conditional_logistic,
    conditional_slope,
    live,
    logistic,
    open_gates,
    relaxed,
)
from l0arm.estimators._surrogate import loss_of, probabilities, surrogate, uniform_like

PER_GATE = ("inward", "linear")
NAMES = (*PER_GATE, "outward", "bias")


@dataclass(frozen=True)
class RELAX(BinaryEstimator):
    """``(f(b) - r(y'))(b - pi) + d r(y)/d logit - d r(y')/d logit``, with b, y, y' as in REBAR.

    ``r(y) = outward . tanh(inward (y - pi)) + linear . (y - pi) + bias`` predicts the loss from the
    gates alone. One evaluation of f, at binary gates, so closed units are not computed. If the
    number of gates changes (shrink), the weights of r that belong to gates are initialised again.

    Args:
        hidden: The number of hidden units of r.
        temperature: Of the relaxed gates y and y'.
        rate: The step of Adam by which the weights of r descend the squared estimate after every
            call. Divided by sqrt(V) for weights that belong to the V gates, since those move r
            together. 0: no tuning.

    Raises:
        ValueError: An option is not finite or out of range.

    Example:
        >>> import torch
        >>> from l0arm.estimators import RELAX
        >>> probs = torch.tensor([0.3, 0.5], requires_grad=True)
        >>> estimator = RELAX(hidden=4)
        >>> value = estimator(lambda z: (z**2).sum(), probs, torch.Generator().manual_seed(0))
        >>> estimator.state["inward"].shape
        torch.Size([4, 2])
    """

    hidden: int = 10
    temperature: float = 2 / 3
    rate: float = 0.01
    state: TunedParameters = field(init=False, compare=False, repr=False)
    forwards = 1

    def __post_init__(self) -> None:
        if not isinstance(self.hidden, int) or self.hidden < 1:
            raise ValueError(f"hidden is a number of units >= 1; got {self.hidden!r}")
        checked_rate(self.rate)
        checked_temperature(self.temperature)
        empty = {name: torch.zeros(0) for name in PER_GATE}  # sized at the first call
        start = TunedParameters(**empty, outward=torch.zeros(self.hidden), bias=torch.zeros(()))
        object.__setattr__(self, "state", start)

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        probs = probabilities(gates)
        u, v = uniform_like(probs, generator), uniform_like(probs, generator)
        if not torch.is_grad_enabled():
            return self.at(f, gates, u, v)
        self._fit(probs, generator)
        weights = {n: self.state[n].to(probs, copy=True).requires_grad_() for n in NAMES}
        value, s = self._estimate(f, probs.detach(), u, v, weights)
        first = int(self.state["steps"]) == 0
        gradients = torch.autograd.grad(s.square().sum(), list(weights.values()))
        slower = self.rate / probs.numel() ** 0.5
        rates = {n: slower if n in PER_GATE else self.rate for n in NAMES}
        self.state.descend(dict(zip(NAMES, gradients, strict=True)), rates)
        if first:  # so that the size of the loss need not be learned in small steps
            self.state["bias"] = loss_of(value)
        return surrogate(value, s.detach(), gates)

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor, v: Tensor) -> Tensor:
        """f(b) with the estimate attached, for given noise and the present weights of r."""
        probs = probabilities(gates)
        self._fit(probs, None)
        weights = {name: self.state[name].to(probs) for name in NAMES}
        value, s = self._estimate(f, probs.detach(), u, v, weights)
        return surrogate(value, s.detach(), gates)

    def _fit(self, probs: Tensor, generator: torch.Generator | None) -> None:
        """Give r weights for this number of gates. At the start r is 0."""
        gates = probs.numel()
        if self.state["linear"].numel() == gates:
            return
        spread = torch.randn(
            self.hidden, gates, generator=generator, dtype=probs.dtype, device=probs.device
        )
        self.state.resize(inward=2 * spread / gates**0.5, linear=torch.zeros(gates))

    def _estimate(
        self, f: Objective, pi: Tensor, u: Tensor, v: Tensor, weights: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """f(b) with its graph, and s with a graph to the weights of r."""
        b = open_gates(u, pi)
        value = f(b)
        zeta, zeta_b = logistic(pi, u), conditional_logistic(pi, b, v)
        _, slope = _network(zeta, pi, self.temperature, **weights)
        guess_b, slope_b = _network(zeta_b, pi, self.temperature, **weights)
        slope_b = slope_b * conditional_slope(pi, b, zeta_b)
        s = (loss_of(value) - guess_b) * (b - pi) + slope - slope_b
        return value, torch.where(live(pi), s, 0.0)


def _network(
    zeta: Tensor,
    pi: Tensor,
    temperature: float,
    inward: Tensor,
    outward: Tensor,
    linear: Tensor,
    bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """``r(y)`` and its derivative in zeta in closed form, where pi is a constant."""
    y, dy = relaxed(zeta, temperature)
    h = torch.tanh(inward @ (y - pi))
    guess = outward @ h + linear @ (y - pi) + bias
    return guess, ((outward * (1 - h.square())) @ inward + linear) * dy
