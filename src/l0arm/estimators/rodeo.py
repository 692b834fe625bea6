"""RODEO: leave-one-out with discrete Stein control variates, made from the other draws.

Shi, Zhou, Hwang, Titsias, Mackey, "Gradient Estimation with Discrete Stein Operators", 2022.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.estimators._base import SeveralDraws, is_finite_number
from l0arm.estimators._memory import Memory
from l0arm.estimators._relaxation import evaluated_with_slopes
from l0arm.estimators._surrogate import binary_draw, probabilities, surrogate


@dataclass(frozen=True)
class RODEO(SeveralDraws):
    """Leave-one-out of ``f - h_k``, plus the mean of ``h_k (z - pi)`` over one gate at a time.

    For each draw k, h_k is a model of f made from the *other* draws: with
    ``t_j(y) = df/dz(z_j).(y - z_j)``, it is the mean over j of ``a t_j + b t_j^2``. For any h, the
    mean of ``h(z)(z_i - pi_i)`` over gate i, with all others as drawn, is ``pi_i (1 - pi_i)``
    times the difference that gate i makes to h. Subtracting one and adding the other is a Stein
    control variate: it changes the noise and not the mean. With a = b = 0 this is
    ``reinforce-loo``. a and b are fitted to the estimates of earlier steps by least squares.

    n evaluations of f and a backward pass for each. Closed units must be computed.

    Args:
        samples: n, the number of draws and of evaluations of f.
        decay: The share of the past in the moving means of the least squares.

    Raises:
        ValueError: ``samples`` is not an integer >= 2, or ``decay`` is not in [0, 1).

    Example:
        >>> import torch
        >>> from l0arm.estimators import RODEO
        >>> probs = torch.tensor([0.3, 0.5], requires_grad=True)
        >>> RODEO()(lambda z: z @ torch.tensor([1.0, 5.0]), probs).backward()
        >>> bool(torch.allclose(probs.grad, torch.tensor([1.0, 5.0])))  # the loss is linear
        True
    """

    samples: int = 3
    decay: float = 0.99
    state: Memory = field(init=False, compare=False, repr=False)
    drops = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_finite_number(self.decay) and 0.0 <= self.decay < 1.0):
            raise ValueError(
                "decay is the share of the past in a moving mean and must lie in [0, 1); got "
                f"{self.decay!r}"
            )
        sums = {"products": torch.zeros(2, 2), "against": torch.zeros(2)}
        steps = torch.zeros((), dtype=torch.int64)
        object.__setattr__(
            self, "state", Memory(weights=torch.tensor([1.0, 0.0]), **sums, steps=steps)
        )

    @property
    def backwards(self) -> int:
        """One per draw, and one to the weights."""
        return self.samples + 1

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        noise = self.noise(probabilities(gates), generator)
        value, plain, parts = self._estimate(f, gates, noise)
        s = plain + self.state["weights"].to(parts) @ parts  # before the fit, which sees the draw
        if torch.is_grad_enabled():
            self._fit(plain, parts)
        return surrogate(value, s, gates)

    def at(self, f: Objective, gates: Gates | Tensor, u: Tensor) -> Tensor:
        """f(z_1) with the estimate attached, for given noise and the present weights."""
        value, plain, parts = self._estimate(f, gates, u)
        return surrogate(value, plain + self.state["weights"].to(parts) @ parts, gates)

    def _estimate(
        self, f: Objective, gates: Gates | Tensor, u: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """f(z_1), the leave-one-out estimate, and what a and b add to it, one row each."""
        probs = probabilities(gates)
        pi = probs.detach()
        draws = binary_draw(u, probs)
        value, losses, slopes = evaluated_with_slopes(f, draws)
        losses, slopes, n = losses.to(pi), slopes.to(pi), len(draws)
        t = draws @ slopes.T - (draws * slopes).sum(1)  # t[k, j] = t_j(z_k)
        others = (1 - torch.eye(n).to(pi)) / (n - 1)  # [k, j]: the mean over j other than k
        apart = draws - pi
        parts = []
        for model in (t, t.square()):
            # h_k at z_m is models[m, k]; that of its own draw minus the mean of the others'.
            models = model @ others.T
            residual = models.diagonal() - (others * models.T).sum(1)
            parts.append(-residual @ apart / n)
        # What gate i makes to h_k at z_k: G_ji for t_j, and G_ji (t_j(z_i = 1) + t_j(z_i = 0)).
        linear = others @ slopes
        square = 2 * (others * t) @ slopes + (1 - 2 * draws) * (others @ slopes.square())
        for part, change in zip(parts, (linear, square), strict=True):
            part += pi * (1 - pi) * change.mean(0)
        plain = (losses - others @ losses) @ apart / n
        return value, plain, torch.stack(parts)

    def _fit(self, plain: Tensor, parts: Tensor) -> None:
        """Weights that would have made the squared estimates of the past smallest."""
        state = self.state
        state["steps"] = state["steps"] + 1
        rate = max(1 / int(state["steps"]), 1 - self.decay)
        products, against = parts @ parts.T, parts @ plain
        state["products"] += rate * (products.to(state["products"]) - state["products"])
        state["against"] += rate * (against.to(state["against"]) - state["against"])
        # Scaled to a unit diagonal: t and its square have different units. The prior is (1, 0).
        scale = state["products"].diagonal().clamp(min=1e-30).rsqrt()
        unit = state["products"] * scale * scale[:, None] + 0.1 * torch.eye(2).to(scale)
        start = torch.stack([0.1 / scale[0], torch.zeros_like(scale[0])])
        fitted = torch.linalg.solve(unit, start - scale * state["against"]) * scale
        if bool(fitted.isfinite().all()):
            state["weights"] = fitted
