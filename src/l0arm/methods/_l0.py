"""L0-ARM and L0-AR, the paper's methods, and L0-DisARM: Bernoulli gates under an L0 penalty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from l0arm.contracts import GateFamily, Method, Penalty
from l0arm.estimators import AR, ARM, DisARM, Estimator
from l0arm.estimators._named import estimator_for
from l0arm.estimators._surrogate import Chain
from l0arm.gates import Bernoulli, GateFunction, ScaledSigmoid
from l0arm.penalties import L0, L1, L2, Strength

GateLike = GateFunction | Callable[[Tensor], Tensor]


def l0(
    lam: Strength,
    *,
    estimator: Estimator | str = "disarm",
    gate: GateLike = ScaledSigmoid(),
    l1: Strength = 0.0,
    l2: Strength = 0.0,
    name: str | None = None,
    **options: Any,
) -> Method:
    """Minimise data loss + lam E||theta||_0 (+ l1 E||theta||_1 + l2 E||theta||_2^2), Eq. 8.

    ``lam`` multiplies the number of weights in the *mean* loss: the paper's 0.1/N is ``0.1 / N``.
    Any estimator can drive it; ``options`` are those of an estimator given by its name.

    >>> l0(0.1 / 60_000, estimator="arm").penalties
    (L0(lam=1.6666666666666667e-06),)
    >>> l0(0.1 / 60_000, estimator="arms", samples=8).estimator
    ARMS(samples=8)
    """
    if isinstance(estimator, str):
        name = name or f"l0-{estimator}"
    estimator = estimator_for(l0, estimator, options)
    _refuse_family(gate)
    penalties: tuple[Penalty, ...] = (L0(lam),)
    if l1 != 0.0:
        penalties += (L1(l1),)
    if l2 != 0.0:
        penalties += (L2(l2),)
    name = name or f"l0-{type(estimator).__name__.lower()}"
    return Method(name, Bernoulli(gate), estimator, penalties)


def l0_arm(
    lam: Strength,
    *,
    gate: GateLike = ScaledSigmoid(),
    l1: Strength = 0.0,
    l2: Strength = 0.0,
    chain: Chain = "exact",
) -> Method:
    """L0-ARM, Eq. 9. ``chain="printed"``: without g'(phi), as it is printed (docs/paper.md)."""
    return l0(lam, estimator=ARM(chain), gate=gate, l1=l1, l2=l2)


def l0_ar(
    lam: Strength,
    *,
    gate: GateLike = ScaledSigmoid(),
    l1: Strength = 0.0,
    l2: Strength = 0.0,
    chain: Chain = "exact",
) -> Method:
    """L0-AR, Eq. 10: one forward pass, much more variance."""
    return l0(lam, estimator=AR(chain), gate=gate, l1=l1, l2=l2)


def l0_disarm(
    lam: Strength,
    *,
    gate: GateLike = ScaledSigmoid(),
    l1: Strength = 0.0,
    l2: Strength = 0.0,
) -> Method:
    """L0-DisARM: the passes of L0-ARM, never more variance; the recommended default."""
    return l0(lam, estimator=DisARM(), gate=gate, l1=l1, l2=l2)


def _refuse_family(gate: object) -> None:
    """These methods make the family from g; one of another distribution has no g."""
    if isinstance(gate, GateFamily):
        raise TypeError(
            f"gate must be a function g with pi = g(phi), got the family {gate!r}: estimators of "
            "binary draws need Bernoulli gates; pass its g, e.g. gate=HardSigmoid()"
        )
