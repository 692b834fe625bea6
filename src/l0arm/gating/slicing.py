"""The transform (theta~, z) -> theta of Eq. 2: closed slices are dropped, not multiplied by zero.

Training, evaluation and compaction all use it, so they cannot disagree.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from l0arm.gating.draw import Draw
from l0arm.gating.layout import Axis, TensorCut
from l0arm.gating.norms import grown_weight


def theta(tensor: Tensor, spec: TensorCut, draw: Draw) -> Tensor:
    """theta = theta~ (.) z, Eq. 2: cut (sliced) or zeroed in the readers (masked).

    The tensor itself is returned if nothing of it is closed.
    """
    cut, sliced = tensor, draw.sliced
    for group in spec.elementwise:
        cut = cut * draw.of_group(group).view_as(cut).to(cut.dtype)
    for dim, axis in spec.axes.items():
        if sliced:
            kept = draw.kept(axis)
            if kept.index is not None:
                cut = cut.index_select(dim, kept.index)
            fold = kept.fold
        else:
            fold = draw.mask(axis)
        if fold is not None:
            cut = cut * _along(fold, dim, cut)
    return cut if spec.rms is None else grown_weight(cut, spec.rms, len(tensor))


def flat_weights(module: nn.RNNBase) -> list[Tensor | None]:
    """The weights of a recurrent module in the order of its kernel, as they are now."""
    return [module._parameters[name] for name in module._flat_weights_names]


def write_back(original: Tensor, updated: Tensor, spec: TensorCut | None, draw: Draw) -> None:
    """Store what a forward pass left in a buffer: the rows of open units only."""
    if spec is None or not spec.axes:
        original.copy_(updated)
        return
    ((dim, axis),) = spec.axes.items()  # a running statistic has one dimension of units
    with torch.no_grad():
        if draw.sliced:
            _write_sliced(original, updated, dim, axis, draw)
        else:
            rows = draw.positions(draw.open_positions(axis))
            original.index_copy_(dim, rows, updated.index_select(dim, rows))


def _write_sliced(original: Tensor, updated: Tensor, dim: int, axis: Axis, draw: Draw) -> None:
    kept = draw.kept(axis)
    if kept.index is None:
        original.copy_(updated)
    elif kept.written is None:
        original.index_copy_(dim, kept.index, updated)
    else:  # stand-ins are computed, but their statistics mean nothing
        rows = kept.written.nonzero().squeeze(1).to(original.device)
        original.index_copy_(dim, kept.index[rows], updated.index_select(dim, rows))


def _along(fold: Tensor, dim: int, tensor: Tensor) -> Tensor:
    shape = [1] * tensor.dim()
    shape[dim] = -1
    return fold.to(tensor.dtype).view(shape)
