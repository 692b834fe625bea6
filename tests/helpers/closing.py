"""An oracle that knows groups but nothing of the engine: the dense network with zeros in it."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from l0arm import Group


def with_zeros(model: nn.Module, groups: Sequence[Group], z: Tensor) -> nn.Module:
    """A copy with zeros where closed units are read; with norms over them, where they are made."""
    dense = copy.deepcopy(model)
    tensors = dict(dense.named_parameters(remove_duplicate=False))
    tensors |= dict(dense.named_buffers(remove_duplicate=False))
    start = 0
    for group in groups:
        closed = (z[start : start + group.units] == 0).nonzero().flatten().tolist()
        start += group.units
        for piece in (*group.makes, *group.reads) if group.closes_makers else group.reads:
            tensor, dim = tensors[piece.tensor], piece.dim
            assert dim is not None
            units = piece.positions(group.units, tensor.shape[dim])
            positions = [position for unit in closed for position in units[unit]]
            with torch.no_grad():
                tensor.index_fill_(dim, torch.tensor(positions, dtype=torch.long), 0.0)
    return dense
