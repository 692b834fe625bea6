"""Differentiable gates: derivatives in z attached to pi, and logistic relaxations of a draw.

Estimators that use these need df/dz at closed gates too, so closed units must be computed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from l0arm.contracts import Objective
from l0arm.estimators._base import is_finite_number
from l0arm.estimators._surrogate import loss_of, per_probability


def through(z: Tensor, probs: Tensor, slope: Tensor) -> Tensor:
    """``z`` unchanged, with dz/dlogit(pi) = slope, so that autograd continues from z to pi.

    >>> probs = torch.tensor([0.5], requires_grad=True)
    >>> z = through(torch.ones(1), probs, torch.tensor([0.25]))  # slope pi (1 - pi): dz/dpi = 1
    >>> (3 * z).sum().backward(); z.item(), probs.grad.item()
    (1.0, 3.0)
    """
    pi = probs.detach()
    return z.detach() + per_probability(slope.detach(), pi) * (probs - pi)


def slope_of(value: Tensor, z: Tensor, *, create_graph: bool = False) -> Tensor:
    """df/dz. It is 0 without a graph (``torch.no_grad``) and where f does not depend on z."""
    if not value.requires_grad:
        return torch.zeros_like(z)
    (slope,) = torch.autograd.grad(
        value, z, retain_graph=True, create_graph=create_graph, materialize_grads=True
    )
    return slope


def evaluated_with_slopes(f: Objective, draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """f at the first draw with its graph, then the losses and df/dz at all draws without one."""
    first: Tensor | None = None  # it also trains the weights; the graphs of the others are freed
    losses, slopes = [], []
    for z in draws:
        leaf = z.clone().requires_grad_()
        value = f(leaf)
        first = value if first is None else first
        losses.append(loss_of(value).reshape(()))
        slopes.append(slope_of(value, leaf))
    assert first is not None
    return first, torch.stack(losses), torch.stack(slopes)


def open_gates(u: Tensor, pi: Tensor) -> Tensor:
    """``1[zeta > 0]`` for zeta of ``logistic``: open for large u, and exact at pi = 0 and 1."""
    return (u >= 1 - pi).to(pi.dtype)


def live(pi: Tensor) -> Tensor:
    """Which gates are not saturated within the resolution of u. Only these get a gradient."""
    return per_probability(torch.ones_like(pi), pi) > 0


def inner(x: Tensor) -> Tensor:
    """x clamped away from 0 and 1 by the resolution of its type, so that its logit is finite."""
    eps = torch.finfo(x.dtype).eps
    return x.clamp(eps, 1 - eps)


def logistic(pi: Tensor, u: Tensor) -> Tensor:
    """``zeta = logit(pi) + logit(u)``, positive with probability pi."""
    return torch.logit(inner(pi)) + torch.logit(inner(u))


def conditional_logistic(pi: Tensor, z: Tensor, v: Tensor) -> Tensor:
    """zeta given its sign z: ``+ log(1 + v / ((1-v)(1-pi)))`` or ``- log(1 + (1-v) / (v pi))``."""
    pi, v = inner(pi), inner(v)
    odds = v / (1 - v)
    return torch.where(z > 0, torch.log1p(odds / (1 - pi)), -torch.log1p(1 / (odds * pi)))


def conditional_slope(pi: Tensor, z: Tensor, zeta: Tensor) -> Tensor:
    """The derivative of ``conditional_logistic`` in logit(pi): ``P(z) (1 - exp(-|zeta|))``."""
    return torch.where(z > 0, pi, 1 - pi) * -torch.expm1(-zeta.abs())


def relaxed(zeta: Tensor, temperature: Tensor | float) -> tuple[Tensor, Tensor]:
    """``y = sigmoid(zeta / temperature)`` in (0, 1), and dy/dzeta."""
    y = torch.sigmoid(zeta / temperature)
    return y, y * (1 - y) / temperature


def checked_temperature(temperature: float) -> float:
    """``temperature`` itself, if it is finite and positive."""
    if not (is_finite_number(temperature) and temperature > 0):
        raise ValueError(
            f"temperature must be a finite number > 0; got {temperature!r}; 2/3 is a usual one, "
            "and 'straight-through' needs none"
        )
    return temperature
