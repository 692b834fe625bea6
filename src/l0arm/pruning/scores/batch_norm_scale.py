"""Batch-norm score: the scale that follows a unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from l0arm.gating import Gated
from l0arm.gating.layout import named_tensors
from l0arm.penalties.norms import per_unit
from l0arm.pruning.scores.magnitude import magnitude


def batch_norm_scale(gated: Gated, losses: Sequence[Callable[[], Tensor]] = ()) -> Tensor:
    """Mean |gamma| of the batch norms that a group cuts.

    The criterion of network slimming (Liu et al., "Learning Efficient Convolutional Networks
    through Network Slimming", 2017). Groups without a batch norm have the magnitude of their
    weights, scaled to the mean of the others.

    Args:
        gated: The gated network.
        losses: Not used. Scales need no data.

    Returns:
        One number per gate.

    Raises:
        ValueError: If no group cuts a batch norm.

    Example:
        >>> import l0arm
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
        >>> batch_norm_scale(l0arm.sparsify(net, example_inputs=torch.rand(5, 3), lam=0.0))
        tensor([1., 1., 1., 1.])
    """
    tensors = named_tensors(gated.model)
    norms = {
        f"{name}.weight" for name, m in gated.model.named_modules() if isinstance(m, _NormBase)
    }
    scores, known = magnitude(gated), torch.zeros(gated.layout.gates, dtype=torch.bool)
    with torch.no_grad():
        for number, group in enumerate(gated.groups):
            found = [p for p in group.makes if p.tensor in norms]
            if found:
                scales = [per_unit(tensors[p.tensor].abs(), p, group.units) for p in found]
                span = gated.layout.span(number)
                scores[span] = sum(scales[1:], scales[0]) / len(scales)
                known[span] = True
    if not bool(known.any()):
        raise ValueError(
            "no group cuts a batch norm, so there is no scale to score units by; use "
            "scores='first-order' or 'magnitude'"
        )
    known = known.to(scores.device)
    if not bool(known.all()):
        scores[~known] *= scores[known].mean() / scores[~known].mean().clamp(min=1e-12)
    return scores
