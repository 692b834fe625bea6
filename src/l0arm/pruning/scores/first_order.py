"""First-order score: how much the loss changes with a gate, to first order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from l0arm.equality.example import in_eval
from l0arm.gating import Gated


def slopes(gated: Gated, losses: Sequence[Callable[[], Tensor]]) -> Iterator[Tensor]:
    """``d loss / d z`` of one batch after the other, with all gates open, in eval mode."""
    for loss in losses:
        z = torch.ones(gated.layout.gates, device=gated.phi.device).requires_grad_()
        with in_eval(gated), torch.enable_grad(), gated.drawn(z, writes=False):
            (slope,) = torch.autograd.grad(loss(), z)
        yield slope


def first_order(gated: Gated, losses: Sequence[Callable[[], Tensor]]) -> Tensor:
    """``mean over batches of |d loss / d z|`` with all gates open.

    This is the Taylor criterion (Molchanov et al., "Pruning Convolutional Neural Networks for
    Resource Efficient Inference", 2017), for whole units: the gates multiply what is read.

    Args:
        gated: The gated network. Nothing of it is changed.
        losses: Functions that compute the loss of one batch by calling ``gated``.

    Returns:
        One number per gate.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((3, 2, 2)), lam=0.0)
        >>> first_order(gated, [lambda: gated(torch.ones(4, 3)).square().sum()]).shape
        torch.Size([5])
    """
    total = torch.zeros(gated.layout.gates, device=gated.phi.device)
    for slope in slopes(gated, losses):
        total += slope.abs()
    return total / max(1, len(losses))
