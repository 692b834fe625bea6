"""Magnitude score: the size of a unit's weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from l0arm.gating import Gated
from l0arm.gating.layout import named_tensors
from l0arm.penalties.norms import per_unit


def magnitude(gated: Gated, losses: Sequence[Callable[[], Tensor]] = ()) -> Tensor:
    """Mean |weight| over the weights that a unit counts.

    The mean, not the sum, so that units of layers with more weights per unit do not rank higher.

    Args:
        gated: The gated network.
        losses: Not used. Magnitudes need no data.

    Returns:
        One number per gate.

    Example:
        >>> import l0arm
        >>> magnitude(l0arm.sparsify(l0arm.models.MLP((3, 2, 2)), lam=0.0)).shape
        torch.Size([5])
    """
    tensors = named_tensors(gated.model)
    scores = []
    with torch.no_grad():
        for group in gated.groups:
            sums = [per_unit(tensors[p.tensor].abs(), p, group.units) for p in group.counts]
            ones = [
                per_unit(torch.ones_like(tensors[p.tensor]), p, group.units) for p in group.counts
            ]
            scores.append(sum(sums[1:], sums[0]) / sum(ones[1:], ones[0]))
    return torch.cat([score.to(gated.phi.device).float() for score in scores])
