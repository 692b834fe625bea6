"""Units that still carry something, for methods that prune single weights or zero whole slices."""

from __future__ import annotations

import torch
from torch import Tensor

from l0arm.gating import Gated, Group, Slice
from l0arm.gating.draw import Draw
from l0arm.gating.layout import TensorCut, named_tensors
from l0arm.penalties.norms import per_unit


def alive_units(gated: Gated) -> Tensor:
    """1 for every open unit with a weight that is not 0 coming in and one going out, else 0.

    The weights of dead units do not count, so this is repeated until nothing changes. A unit with
    nothing coming in would send a constant made of its bias; it is closed, and that is dropped.
    """
    tensors = named_tensors(gated.model)
    z = (gated.gates.probs != 0).to(gated.sizes.dtype)
    while True:
        draw = Draw(gated.layout, z)
        live = {
            piece.tensor: _live(tensors[piece.tensor], gated.layout.tensors[piece.tensor], draw)
            for group in gated.groups
            for piece in (*group.reads, *group.makes)
            if tensors[piece.tensor].dim() >= 2
        }
        connected = torch.cat([_connected(group, live).to(z.device) for group in gated.groups])
        followed = z * connected
        if torch.equal(followed, z):
            return z
        z = followed


def _live(tensor: Tensor, spec: TensorCut, draw: Draw) -> Tensor:
    """Which weights are neither 0 nor part of a closed unit."""
    live = tensor.detach() != 0
    for dim, axis in spec.axes.items():
        shape = [1] * tensor.dim()
        shape[dim] = -1
        live = live & torch.from_numpy(draw.open_positions(axis)).to(live.device).view(shape)
    return live.to(torch.float32)


def _connected(group: Group, live: dict[str, Tensor]) -> Tensor:
    """1 for units that are read and, if anything makes them, made."""
    read = _any(group, group.reads, live)
    made = [piece for piece in group.makes if piece.tensor in live]
    return read * _any(group, made, live) if made else read


def _any(group: Group, pieces: list[Slice] | tuple[Slice, ...], live: dict[str, Tensor]) -> Tensor:
    counts = [per_unit(live[p.tensor], p, group.units) for p in pieces if p.tensor in live]
    if not counts:  # read by a bias or a scale only: nothing to tell it dead by
        return torch.ones(group.units)
    return (sum(counts[1:], counts[0]) > 0).to(torch.float32)
