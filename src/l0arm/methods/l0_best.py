"""L0-DisARM with an end: the gates learn, are decided, and the weights settle under them."""

from __future__ import annotations

from dataclasses import replace

import torch

from l0arm.gates import ScaledSigmoid
from l0arm.groups import Gated
from l0arm.methods.l0 import GateLike, l0
from l0arm.methods.method import Method
from l0arm.methods.stage import Stage, Validate, half_cosine, never
from l0arm.penalties import Strength

SURE = 100.0  # k phi of a decided gate: sigmoid(-100) is 4e-44, which no u in float32 undercuts


def l0_best(
    lam: Strength,
    *,
    gate: GateLike = ScaledSigmoid(),
    l1: Strength = 0.0,
    l2: Strength = 0.0,
    settle: float = 0.25,
) -> Method:
    """DisARM for all but the last ``settle`` of the epochs; then the gates stay as they are.

    While gates are undecided the thresholded network is not the one that was trained. So they are
    decided at once, by the threshold, and the weights are trained on under the fixed gates with
    a rate that falls to zero.
    """
    if not 0.0 < settle < 1.0:
        raise ValueError(f"settle is the share of the last stage, between 0 and 1; got {settle}")
    stages = (
        Stage("learn", 1 - settle),
        Stage("settle", settle, enter=decide, gate_lr=0.0, anneal=half_cosine, penalty=never),
    )
    return replace(
        l0(lam, estimator="disarm", gate=gate, l1=l1, l2=l2, name="l0-best"), stages=stages
    )


def decide(gated: Gated, validate: Validate | None) -> None:
    """Every gate is open or closed for sure, as the threshold says (Eq. 14)."""
    with torch.no_grad():
        open_now = gated.deterministic() > 0
        gated.phi.copy_(torch.where(open_now, SURE, -SURE))
