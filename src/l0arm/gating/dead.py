"""Dead structure: units that are open, but whose every path to the output is closed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from l0arm.gating.draw import Draw, Mask
from l0arm.gating.layout import Layout, TensorCut


def follow_dead(layout: Layout, z: Tensor) -> Tensor:
    """Close every unit that no open weight reads, until nothing changes.

    A filter whose flattened inputs are all closed goes, and so do the flattened inputs of a closed
    filter. Exact: nothing read what they sent.
    """
    while True:
        draw = Draw(layout, z)
        alive = np.zeros(layout.gates + 1, dtype=np.bool_)
        for spec in layout.tensors.values():
            _mark_read(alive, spec, draw)
        followed = torch.where(torch.from_numpy(alive[:-1]).to(z.device), z, torch.zeros_like(z))
        if torch.equal(followed, z):
            return z
        z = followed


def _mark_read(alive: Mask, spec: TensorCut, draw: Draw) -> None:
    """Mark the gates whose positions are read in this tensor by a weight that is open."""
    for dim, axis in spec.axes.items():
        if _others_open(spec, dim, draw):
            positions = draw.open_positions(axis)
            for reach in axis.reaches:
                if reach.folds:
                    alive[reach.numbers[positions]] = True
    for group in spec.elementwise:
        alive[draw.layout.span(group)] = True


def _others_open(spec: TensorCut, dim: int, draw: Draw) -> bool:
    """Whether the tensor's other dimensions leave anything that reads along ``dim``."""
    return all(bool(draw.open_positions(a).any()) for d, a in spec.axes.items() if d != dim)
