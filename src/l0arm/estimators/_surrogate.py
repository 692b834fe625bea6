"""A surrogate loss: the value of f(z), with an estimated gradient attached to the probabilities.

It is a loss and not a gradient hook, so clipping, accumulation and loss scaling need no special
case.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
from l0arm.gating.host import HOST
from l0arm.gating.synchrony import several_processes
from l0arm.precision import at_least_float32

Chain = Literal["exact", "printed"]


def checked_chain(chain: Chain) -> Chain:
    """``chain`` itself, if it is one of the two."""
    if chain not in ("exact", "printed"):
        raise ValueError(f"chain must be 'exact' or 'printed'; got {chain!r}")
    return chain


def probabilities(gates: Gates | Tensor) -> Tensor:
    """pi with its graph, in float32 at least: in bfloat16, P(u < 0.999) would be 1."""
    if isinstance(gates, Tensor):
        return at_least_float32(gates)
    if not isinstance(gates, Gates):
        raise TypeError(
            f"{type(gates).__name__} has no probs, but estimators of binary draws need z ~ "
            "Ber(probs); use Bernoulli gates, or the estimator that belongs to this family"
        )
    return at_least_float32(gates.probs)


def uniform_like(probs: Tensor, generator: torch.Generator | None) -> Tensor:
    """u ~ Uniform(0, 1), one per entry."""
    return torch.rand(probs.shape, generator=generator, dtype=probs.dtype, device=probs.device)


def binary_draw(u: Tensor, probs: Tensor) -> Tensor:
    """``z = 1[u < pi]``, Eq. 8."""
    pi = probs.detach()
    return (u < pi).type_as(pi)


def antithetic_pair(u: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
    """The two draws of Eq. 9: ``1[u < g(phi)]`` and ``1[u > g(-phi)]``, the latter as 1[1-u < pi].

    Both are exact draws from Ber(pi) for every g. ``>=`` makes that true at pi = 0 and pi = 1.
    """
    pi = probs.detach()
    z, z_anti = pi.new_empty((2, *u.shape)).unbind()  # rows of one tensor reach the host together
    return torch.lt(u, pi, out=z), torch.ge(u, 1 - pi, out=z_anti)


def equal_draws(z: Tensor, z_anti: Tensor) -> bool:
    """Whether the second evaluation can be skipped, because it would repeat the first.

    With several processes it is never skipped: a rank that skips a forward pass would block the
    collective operations of the others.
    """
    return HOST.equal(z, z_anti) and not several_processes()


def antithetic_loss(f: Objective, z_anti: Tensor) -> Tensor:
    """f at the second draw, without a graph."""
    with torch.no_grad():
        return loss_of(f(z_anti))


def loss_of(value: Tensor) -> Tensor:
    """The loss without a graph, in float32 at least: differences of close losses are taken."""
    return at_least_float32(value.detach())


def unmoved(value: Tensor, gates: Gates | Tensor, chain: Chain = "exact") -> Tensor:
    """``surrogate`` where both draws are equal: the estimate is zero for every gate."""
    of = _phi(gates) if chain == "printed" else probabilities(gates)
    return _attach_zeros(at_least_float32(value), of)


def surrogate(value: Tensor, s: Tensor, gates: Gates | Tensor, chain: Chain = "exact") -> Tensor:
    """f(z), with ``s``, an estimate of the gradient in logit(pi), attached to the gates.

    ``exact``: dE/dpi = s / (pi (1 - pi)), and autograd multiplies by g'(phi). ``printed``: s itself
    is used as the gradient in phi, as Eq. 9 and 10 are printed. Both agree for g = sigmoid only.
    """
    if chain == "printed":
        return with_gradient(value, of=_phi(gates), grad=s)
    probs = probabilities(gates)
    return with_gradient(value, of=probs, grad=per_probability(s, probs.detach()))


def per_probability(s: Tensor, pi: Tensor) -> Tensor:
    """s / (pi (1 - pi)), and 0 for a gate that is saturated within the resolution of u.

    For such a gate the expectation of s is 0 up to rounding, but single draws of s are not: phi
    would follow a random walk, and the quotient could overflow.
    """
    variance = pi * (1 - pi)
    return s / torch.threshold(variance, torch.finfo(pi.dtype).eps, math.inf)


def with_gradient(value: Tensor, *, of: Tensor, grad: Tensor) -> Tensor:
    """``value`` unchanged, with ``grad`` added to its derivative with respect to ``of``."""
    return _attach(at_least_float32(value), of, grad.detach())


class _WithGradient(torch.autograd.Function):
    """One node of the graph, where ``value + (grad * (of - of.detach())).sum()`` has four."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, of: Tensor, grad: Tensor) -> Tensor:
        ctx.save_for_backward(grad)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,) = ctx.saved_tensors
        return outer, outer.sum() * grad, None


class _WithZeros(torch.autograd.Function):
    """The same for a gradient of zeros, which is not multiplied: phi gets a gradient all the same.

    An optimizer treats a parameter without a gradient differently from one with zeros.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, of: Tensor) -> Tensor:
        ctx.shape, ctx.options = of.shape, {"dtype": of.dtype, "device": of.device}
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor]:
        return outer, torch.zeros(ctx.shape, **ctx.options)


_attach: Callable[[Tensor, Tensor, Tensor], Tensor] = _WithGradient.apply
_attach_zeros: Callable[[Tensor, Tensor], Tensor] = _WithZeros.apply


def _phi(gates: Gates | Tensor) -> Tensor:
    if isinstance(gates, Tensor):
        raise TypeError(
            "chain='printed' takes the estimate for the gradient in phi, but got plain "
            "probabilities; pass gates with a phi (Bernoulli(g)(phi)) or use chain='exact'"
        )
    return gates.phi
