"""L0-ARM and L0-AR, the paper's methods, and L0-DisARM: Bernoulli gates under an L0 penalty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from l0arm.contracts import GateFamily, Method, Penalty
from l0arm.estimators import AR, ARM, DisARM, Estimator
from l0arm.estimators._named import estimator_for
from l0arm.estimators._surrogate import Chain
from l0arm.gates import Bernoulli, GateFunction, ScaledSigmoid
from l0arm.gates.bernoulli import SpreadOf
from l0arm.methods.second_pass import SecondPass, second_pass_in_eval
from l0arm.penalties import L0, L1, L2, Strength

GateLike = GateFunction | Callable[[Tensor], Tensor] | float


def l0(
    lam: Strength,
    *,
    estimator: Estimator | str = "disarm",
    gate: GateLike = ScaledSigmoid(),
    l1: Strength = 0.0,
    l2: Strength = 0.0,
    spread_of: SpreadOf = "pi",
    name: str | None = None,
    **options: Any,
) -> Method:
    """Minimise data loss + lam E||theta||_0 (+ l1 E||theta||_1 + l2 E||theta||_2^2), Eq. 8.

    Args:
        lam: The strength of the L0 penalty per weight, in units of the *mean* loss: the paper's
            0.1/N is ``0.1 / N``. One number, or one per group.
        estimator: How phi gets a gradient: an estimator, or a name of ``ESTIMATORS``.
        gate: The gate function g, with pi = g(phi). A number k is ``ScaledSigmoid(k)``.
        l1: The strength of the expected L1 norm.
        l2: The strength of the expected squared L2 norm.
        spread_of: What has a spread of 0.01 at the start, pi or its logit (``Bernoulli``).
        name: The name of the method in records and tables. None: ``l0-`` and the estimator's name.
        **options: Options of an estimator that is given by its name.

    Returns:
        The method, for ``sparsify(model, method=...)``.

    Raises:
        TypeError: The estimator has no such option, or ``gate`` is a family of gates.
        ValueError: The estimator is unknown, or a strength is negative or not finite.

    Example:
        >>> from l0arm.methods import l0
        >>> l0(0.1 / 60_000, estimator="arm").penalties
        (L0(lam=1.6666666666666667e-06),)
        >>> l0(0.1 / 60_000, estimator="arms", samples=8).estimator
        ARMS(samples=8)
    """
    if isinstance(estimator, str):
        name = name or f"l0-{estimator}"
    estimator = estimator_for(l0, estimator, options)
    if isinstance(gate, int | float):
        gate = ScaledSigmoid(float(gate))
    if isinstance(gate, GateFamily):
        raise TypeError(
            f"gate must be a function g with pi = g(phi), got the family {gate!r}: estimators of "
            "binary draws need Bernoulli gates; pass its g, e.g. gate=HardSigmoid()"
        )
    penalties: tuple[Penalty, ...] = (L0(lam),)
    if l1 != 0.0:
        penalties += (L1(l1),)
    if l2 != 0.0:
        penalties += (L2(l2),)
    name = name or f"l0-{type(estimator).__name__.lower()}"
    return Method(name, Bernoulli(gate, spread_of), estimator, penalties)


def l0_arm(
    lam: Strength,
    *,
    gate: GateLike = ScaledSigmoid(),
    l1: Strength = 0.0,
    l2: Strength = 0.0,
    chain: Chain = "exact",
    spread_of: SpreadOf = "pi",
    second_pass: SecondPass = "train",
) -> Method:
    """L0-ARM, the paper's method: ``l0`` with the ARM estimator, Eq. 9.

    Args:
        lam: The strength of the L0 penalty, as in ``l0``.
        gate: The gate function g, with pi = g(phi).
        l1: The strength of the expected L1 norm.
        l2: The strength of the expected squared L2 norm.
        chain: ``"printed"`` leaves out g'(phi), as Eq. 9 is printed (docs/paper.md).
        spread_of: What has a spread of 0.01 at the start, as in ``l0``.
        second_pass: ``"eval"`` runs the second evaluation in eval mode, as the authors' code does.
            With BatchNorm the two evaluations then are of different functions, and the estimate is
            biased. It is there to show what that does.

    Returns:
        The method, for ``sparsify(model, method=...)``.

    Raises:
        ValueError: An option is unknown.

    Example:
        >>> from l0arm.methods import l0_arm
        >>> l0_arm(0.1 / 60_000).estimator
        ARM(chain='exact', skip=True)
    """
    if second_pass not in ("train", "eval"):
        raise ValueError(f"second_pass must be 'train' or 'eval'; got {second_pass!r}")
    estimator = ARM(chain, skip=second_pass == "train")
    method = l0(lam, estimator=estimator, gate=gate, l1=l1, l2=l2, spread_of=spread_of)
    return method if second_pass == "train" else replace(method, extras=second_pass_in_eval)


def l0_ar(
    lam: Strength,
    *,
    gate: GateLike = ScaledSigmoid(),
    l1: Strength = 0.0,
    l2: Strength = 0.0,
    chain: Chain = "exact",
    spread_of: SpreadOf = "pi",
) -> Method:
    """L0-AR, the paper's method with one forward pass and much more variance, Eq. 10.

    Args:
        lam: The strength of the L0 penalty, as in ``l0``.
        gate: The gate function g, with pi = g(phi).
        l1: The strength of the expected L1 norm.
        l2: The strength of the expected squared L2 norm.
        chain: ``"printed"`` leaves out g'(phi), as Eq. 10 is printed (docs/paper.md).
        spread_of: What has a spread of 0.01 at the start, as in ``l0``.

    Returns:
        The method, for ``sparsify(model, method=...)``.

    Example:
        >>> from l0arm.methods import l0_ar
        >>> l0_ar(0.1 / 60_000).estimator.forwards
        1
    """
    return l0(lam, estimator=AR(chain), gate=gate, l1=l1, l2=l2, spread_of=spread_of)


def l0_disarm(
    lam: Strength,
    *,
    gate: GateLike = ScaledSigmoid(),
    l1: Strength = 0.0,
    l2: Strength = 0.0,
) -> Method:
    """L0-DisARM, the default: as many forward passes as L0-ARM, and never more variance.

    Args:
        lam: The strength of the L0 penalty, as in ``l0``.
        gate: The gate function g, with pi = g(phi).
        l1: The strength of the expected L1 norm.
        l2: The strength of the expected squared L2 norm.

    Returns:
        The method, for ``sparsify(model, method=...)``.

    Example:
        >>> from l0arm.methods import l0_disarm
        >>> l0_disarm(0.1 / 60_000).name
        'l0-disarm'
    """
    return l0(lam, estimator=DisARM(), gate=gate, l1=l1, l2=l2)
