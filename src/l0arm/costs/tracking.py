"""Keep the expected cost at the budget's falling target, whatever the length of the training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from l0arm.gating import Gated

CLOSE = 0.002  # of the dense cost: nearer to the target, nothing is shifted
BISECTIONS = 8


@torch.no_grad()
def follow_target(gated: Gated, slack: float = CLOSE) -> None:
    """Shift phi of all gates by one number, so that the expected cost is the target of this step.

    The data loss moves gates relative to each other; this shift moves all of them together, as a
    Lagrange multiplier would. Unlike dual ascent it needs no rate: the target is met at every step
    of a training of any length. Gates that no such shift brings to the target stay as they are.

    Args:
        gated: A gated network with a budget. Its phi is written.
        slack: Share of the dense cost. Nearer to the target, nothing is shifted.

    Raises:
        ValueError: If there is no budget.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 20, 3)), budget="50%", initial=0.95)
        >>> gated.budget.warmup = 0  # the target is 50 % from the first step on
        >>> follow_target(gated)
        >>> abs(gated.budget.shares(gated.gates.open_probability)["parameters"][0] - 0.5) < 0.01
        True
    """
    budget = gated.budget
    if budget is None:
        raise ValueError("the model has no budget; give one to sparsify(..., budget='40%')")
    family, start = gated.method.gate.within(gated.group_of), gated.phi.detach().clone()

    def excess(shift: float) -> float:
        shares = budget.shares(family(start - shift).open_probability)
        return max(share - target for share, target, _ in shares.values())

    now = excess(0.0)
    if abs(now) < slack or start.dim() > 1:  # further columns are no probabilities
        return
    near, far = 0.0, 0.05 if now > 0 else -0.05
    for _ in range(BISECTIONS):  # double until the target lies between
        if (excess(far) > 0) != (now > 0):
            break
        near, far = far, 2 * far
    else:
        return  # decided gates: a shift would have to undo that
    for _ in range(BISECTIONS):
        middle = (near + far) / 2
        near, far = (middle, far) if (excess(middle) > 0) == (now > 0) else (near, middle)
    gated.phi.sub_(far)
