"""Fisher score: how much the loss changes with a gate, to second order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from l0arm.gating import Gated
from l0arm.pruning.scores.first_order import slopes


def fisher(gated: Gated, losses: Sequence[Callable[[], Tensor]]) -> Tensor:
    """``mean over batches of (d loss / d z)^2`` with all gates open.

    In a trained network the mean slope of a gate is about 0, so what closing it costs is of second
    order: half of the second derivative. The squared slope stands for that, as the Fisher
    information does for the Hessian (Theis et al., "Faster gaze prediction with dense networks and
    Fisher pruning", 2018). It can be added over units and compared with costs.

    Args:
        gated: The gated network. Nothing of it is changed.
        losses: Functions that compute the loss of one batch by calling ``gated``.

    Returns:
        One number per gate.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((3, 2, 2)), lam=0.0)
        >>> fisher(gated, [lambda: gated(torch.ones(4, 3)).square().sum()]).shape
        torch.Size([5])
    """
    total = torch.zeros(gated.layout.gates, device=gated.phi.device)
    for slope in slopes(gated, losses):
        total += slope.square()
    return total / max(1, len(losses))
