"""Activation score: how strongly a unit fires."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from l0arm.equality.example import in_eval
from l0arm.gating import Gated


def activation(gated: Gated, losses: Sequence[Callable[[], Tensor]]) -> Tensor:
    """Mean |activation| of a unit, where the first weight that reads it receives it.

    Args:
        gated: The gated network. Nothing of it is changed.
        losses: Functions that compute the loss of one batch by calling ``gated``.

    Returns:
        One number per gate. Groups whose reader is no linear or convolutional layer have the mean
        of the others.

    Raises:
        ValueError: If no group is read by a linear or convolutional layer.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((3, 2, 2)), lam=0.0)
        >>> activation(gated, [lambda: gated(torch.ones(4, 3)).sum()])[:3]
        tensor([1., 1., 1.])
    """
    sums = torch.zeros(gated.layout.gates, device=gated.phi.device)
    seen = torch.zeros(gated.layout.gates, device=gated.phi.device)
    handles = []
    for number, group in enumerate(gated.groups):
        piece = group.reads[-1] if group.dots else group.reads[0]  # rows of queries come first
        module = gated.model.get_submodule(piece.tensor.rpartition(".")[0])
        if piece.dim != 1 or not isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            continue
        size = module.weight.shape[1]
        positions = torch.zeros(size, dtype=torch.long, device=sums.device)
        for unit, places in enumerate(piece.positions(group.units, size)):
            positions[list(places)] = gated.layout.span(number).start + unit

        def record(module: nn.Module, args: tuple[Any, ...], at: Tensor = positions) -> None:
            x = args[0].detach().abs().float()
            channel = -1 if isinstance(module, nn.Linear) else 1
            others = [d for d in range(x.dim()) if d != channel % x.dim()]
            sums.index_add_(0, at, x.mean(others))
            seen.index_add_(0, at, torch.ones_like(at, dtype=seen.dtype))

        handles.append(module.register_forward_pre_hook(record))
    if not handles:
        raise ValueError(
            "no group is read by a linear or convolutional layer, so there is no activation to "
            "score units by; use scores='first-order' or 'magnitude'"
        )
    try:
        with in_eval(gated), torch.no_grad(), gated.drawn(torch.ones_like(sums), writes=False):
            for loss in losses:
                loss()
    finally:
        for handle in handles:
            handle.remove()
    known = seen > 0
    scores = sums / seen.clamp(min=1)
    scores[~known] = scores[known].mean()
    return scores
