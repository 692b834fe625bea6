"""A surrogate loss: the value of f(z), carrying a hand-made gradient for the probabilities.

A loss and not a gradient hook: clipping, accumulation and loss scalers need no special case.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from l0arm.contracts import Gates, Objective
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
    if not isinstance(gates, Tensor | Gates):
        raise TypeError(
            f"{type(gates).__name__} has no probs, but estimators of binary draws need z ~ "
            "Ber(probs); use Bernoulli gates, or the estimator that belongs to this family"
        )
    return at_least_float32(gates if isinstance(gates, Tensor) else gates.probs)


def uniform_like(probs: Tensor, generator: torch.Generator | None) -> Tensor:
    """u ~ Uniform(0, 1), one per gate."""
    return torch.rand(probs.shape, generator=generator, dtype=probs.dtype, device=probs.device)


def antithetic_pair(u: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
    """The two draws of Eq. 9: ``1[u < g(phi)]`` and ``1[u > g(-phi)]``, the latter as 1[1-u < pi].

    Both are exact draws from Ber(pi) for every g; ``>=`` keeps them so at pi = 0 and pi = 1.
    """
    pi = probs.detach()
    return (u < pi).type_as(pi), (u >= 1 - pi).type_as(pi)


def antithetic_loss(f: Objective, z: Tensor, z_anti: Tensor, value: Tensor) -> Tensor:
    """f at the second draw, without a graph; not evaluated where both draws coincide.

    With several processes it always is: a pass left out on one rank alone would hang the others.
    """
    if torch.equal(z, z_anti) and not several_processes():
        return loss_of(value)
    with torch.no_grad():
        return loss_of(f(z_anti))


def loss_of(value: Tensor) -> Tensor:
    """The loss as a number: detached, in float32 at least (differences of close losses follow)."""
    return at_least_float32(value.detach())


def surrogate(value: Tensor, s: Tensor, gates: Gates | Tensor, chain: Chain = "exact") -> Tensor:
    """f(z) with the estimate ``s`` of the gradient in the logit of pi hung on the gates.

    ``exact``: dE/dpi = s / (pi (1 - pi)); autograd multiplies by g'(phi). ``printed``: s itself is
    taken for the gradient in phi, as Eq. 9 and 10 are printed; they agree only for g = sigmoid.
    """
    if chain == "printed":
        return with_gradient(value, of=_phi(gates), grad=s)
    probs = probabilities(gates)
    return with_gradient(value, of=probs, grad=per_probability(s, probs.detach()))


def per_probability(s: Tensor, pi: Tensor) -> Tensor:
    """s / (pi (1 - pi)), and 0 for a gate that is saturated within the resolution of u.

    There the expectation of s is 0 to rounding, single draws of it are not: left in, they would
    make phi walk at random (and the quotient overflow).
    """
    variance = pi * (1 - pi)
    return s / torch.threshold(variance, torch.finfo(pi.dtype).eps, math.inf)


def with_gradient(value: Tensor, *, of: Tensor, grad: Tensor) -> Tensor:
    """``value`` unchanged; its derivative with respect to ``of`` is ``grad`` on top of its own."""
    result: Tensor = _WithGradient.apply(at_least_float32(value), of, grad.detach())  # type: ignore[no-untyped-call]
    return result


class _WithGradient(torch.autograd.Function):
    """One node of the graph, where ``value + (grad * (of - of.detach())).sum()`` would be four."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, of: Tensor, grad: Tensor) -> Tensor:
        ctx.save_for_backward(grad)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,) = ctx.saved_tensors
        return outer, outer.sum() * grad, None


def _phi(gates: Gates | Tensor) -> Tensor:
    if isinstance(gates, Tensor):
        raise TypeError(
            "chain='printed' takes the estimate for the gradient in phi, but got plain "
            "probabilities; pass gates with a phi (Bernoulli(g)(phi)) or use chain='exact'"
        )
    return gates.phi
