"""GD: generalized dropout, reconstructed.

Srinivas, Babu, "Generalized Dropout", 2016. Only the idea was available (Bernoulli gates whose keep
probabilities are learned under a Beta prior). Penalty, gradient and constants are the natural
reading of it, not the published code.
"""

from __future__ import annotations

from typing import Any

import torch

from l0arm.contracts import Method
from l0arm.estimators import Estimator
from l0arm.estimators._named import estimator_for
from l0arm.gates import Bernoulli, HardSigmoid
from l0arm.gating import Gated
from l0arm.penalties import BetaPrior, Strength

NEAREST = 1e-3  # the smallest distance of pi from 0 and 1


def generalized_dropout(
    lam: Strength,
    *,
    a: float = 1.0,
    b: float = 2.0,
    estimator: Estimator | str = "straight-through",
    **options: Any,
) -> Method:
    """Find the most probable keep probabilities under a Beta(a, b) prior.

    The probability itself is the parameter: pi = phi + 1/2. A unit with pi > 1/2 is kept and
    multiplied by pi.

    Args:
        lam: The strength of the prior. One number, or one per group.
        a: The first parameter of the Beta prior.
        b: The second.
        estimator: How phi gets a gradient: an estimator, or a name of ``ESTIMATORS``.
        **options: Options of an estimator that is given by its name.

    Returns:
        The method, for ``sparsify(model, method=...)``.

    Raises:
        TypeError: The estimator has no such option.
        ValueError: The estimator is unknown, or a number is out of range.

    Example:
        >>> from l0arm.methods import generalized_dropout
        >>> generalized_dropout(0.1, estimator="arms", samples=8).estimator
        ARMS(samples=8)
    """
    return Method(
        "generalized-dropout",
        Bernoulli(HardSigmoid(k=7.0)),  # phi + 1/2, clipped
        estimator_for(generalized_dropout, estimator, options),
        (BetaPrior(lam, a, b),),
        after_step=clamp_phi,
    )


def clamp_phi(gated: Gated, optimizer: torch.optim.Optimizer) -> None:
    """Clamp pi to [0.001, 0.999]: at 0 and 1 the prior diverges and the hard sigmoid is flat."""
    with torch.no_grad():
        gated.phi.clamp_(NEAREST - 0.5, 0.5 - NEAREST)
