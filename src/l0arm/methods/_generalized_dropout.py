"""GD: generalized dropout (Srinivas & Babu 2016). A reconstruction.

Only the idea could be read (Bernoulli gates whose keep probabilities are learned under a Beta
prior); penalty, gradient and constants are the natural reading of it, not the published code.
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

NEAREST = 1e-3  # pi stays this far from 0 and 1


def generalized_dropout(
    lam: Strength,
    *,
    a: float = 1.0,
    b: float = 2.0,
    estimator: Estimator | str = "straight-through",
    **options: Any,
) -> Method:
    """The most probable keep probabilities under a Beta(a, b) prior, by straight-through gradients.

    The probability itself is the parameter: pi = phi + 1/2. A unit with pi > 1/2 stays, times pi.
    Any estimator can drive it; ``options`` are those of an estimator given by its name.

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
    """pi within [0.001, 0.999]: at 0 and 1 the prior diverges and the hard sigmoid is flat."""
    with torch.no_grad():
        gated.phi.clamp_(NEAREST - 0.5, 0.5 - NEAREST)
