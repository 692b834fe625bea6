"""l0-best: DisARM under a price per parameter; then every gate is decided, and the weights settle.

Evidence for each of its parts: docs/l0-best.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch

from l0arm.estimators import Estimator
from l0arm.gates import ScaledSigmoid
from l0arm.groups import Gated
from l0arm.groups.dead import follow_dead
from l0arm.methods.driving import estimator_for
from l0arm.methods.l0 import GateLike, l0
from l0arm.methods.method import Method
from l0arm.methods.shares import check_shares
from l0arm.methods.stage import Ramp, Stage, Validate, always, half_cosine, never
from l0arm.penalties.parameters import Parameters, parameter_count

Price = Literal["left", "fixed"]

SURE = 100.0  # phi of a decided gate: sigmoid(-7 * 100) is 0


def l0_best(
    lam: float,
    *,
    gate: GateLike = ScaledSigmoid(),
    estimator: Estimator | str = "disarm",
    price: Price = "left",
    warm_up: float = 0.75,
    settle: float = 2 / 3,
    settle_lr: float = 3.0,
    **options: Any,
) -> Method:
    """Minimise data loss + lam E[parameters left], and end with gates that are open or closed.

    ``lam`` is the price of one parameter in the mean loss, the same in all layers. It grows from 0
    over the first ``warm_up`` of the learning, slowly: a price that comes at once closes the layer
    with the most weights per unit before its gates know what they are worth. For the last
    ``settle`` of the epochs the gates are fixed, as the threshold decides: while they are
    undecided, the thresholded network is not the one that was trained. The weights are trained on
    with a rate that falls to zero from ``settle_lr`` times the optimizer's.

    Each part can be taken away: ``estimator="arm"``, ``price="fixed"`` (Eq. 17: a unit costs the
    weights it has in the dense network), ``warm_up=0``, ``settle=0``. ``options`` are those of an
    estimator given by its name.
    """
    check_shares(warm_up=warm_up, settle=settle)
    learn = Stage("learn", 1 - settle, penalty=Ramp(0.0, warm_up) if warm_up else always)
    end = (_settling(settle, settle_lr),) if settle else ()
    estimator = estimator_for(l0_best, estimator, options)
    method = l0(lam, estimator=estimator, gate=gate, name="l0-best")
    if price == "left":
        method = replace(method, penalties=(Parameters(lam),), extras=parameter_count)
    elif price != "fixed":
        raise ValueError(f"price must be 'left' or 'fixed'; got {price!r}")
    return replace(method, stages=(learn, *end))


def _settling(share: float, lr: float) -> Stage:
    """The gates are decided, and the weights trained on with a rate that falls to zero."""
    return Stage(
        "settle", share, enter=decide, lr=lr, gate_lr=0.0, anneal=half_cosine, penalty=never
    )


def decide(gated: Gated, validate: Validate | None) -> None:
    """Every gate is open or closed for sure, as the threshold says (Eq. 14).

    Units without a path to the output close, too: nothing has told their gates what they are for.
    """
    with torch.no_grad():
        alive = follow_dead(gated.layout, gated.deterministic())
        gated.phi.copy_(torch.where(alive > 0, SURE, -SURE))
