"""l0-best: DisARM under a price per parameter; then every gate is decided, and the weights settle.

Evidence for each of its parts: docs/l0-best.md.
"""

from __future__ import annotations

import torch

from l0arm.estimators import DisARM
from l0arm.gates import Bernoulli, ScaledSigmoid
from l0arm.groups import Gated
from l0arm.groups.dead import follow_dead
from l0arm.methods.l0 import GateLike
from l0arm.methods.method import Method
from l0arm.methods.stage import Ramp, Stage, Validate, half_cosine, never
from l0arm.penalties.parameters import Parameters, parameter_count

SURE = 100.0  # phi of a decided gate: sigmoid(-7 * 100) is 0


def l0_best(
    lam: float, *, gate: GateLike = ScaledSigmoid(), settle: float = 0.25, warm_up: float = 0.75
) -> Method:
    """Minimise data loss + lam E[parameters left], and end with gates that are open or closed.

    ``lam`` is the price of one parameter in the mean loss, the same in all layers. It grows from 0
    over the first ``warm_up`` of the learning, slowly: a price that comes at once closes the layer
    with the most weights per unit before its gates know what they are worth. For the last
    ``settle`` of the epochs the gates are fixed, as the threshold decides: while they are
    undecided, the thresholded network is not the one that was trained. The weights are trained on
    with a rate that falls to zero.
    """
    for name, share in (("settle", settle), ("warm_up", warm_up)):
        if not 0.0 < share < 1.0:
            raise ValueError(f"{name} is a share between 0 and 1; got {share!r}")
    return Method(
        "l0-best",
        Bernoulli(gate),
        DisARM(),
        (Parameters(lam),),
        stages=(
            Stage("learn", 1 - settle, penalty=Ramp(0.0, warm_up)),
            Stage("settle", settle, enter=decide, gate_lr=0.0, anneal=half_cosine, penalty=never),
        ),
        extras=parameter_count,
    )


def decide(gated: Gated, validate: Validate | None) -> None:
    """Every gate is open or closed for sure, as the threshold says (Eq. 14).

    Units without a path to the output close, too: nothing has told their gates what they are for.
    """
    with torch.no_grad():
        alive = follow_dead(gated.layout, gated.deterministic())
        gated.phi.copy_(torch.where(alive > 0, SURE, -SURE))
