"""What a group can free: weights and multiply-adds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor, nn

from l0arm.gating import Group
from l0arm.gating.group import unit_slices
from l0arm.planning.site import Trace
from l0arm.planning.units import Found


def weights_freed(tensors: Mapping[str, Tensor], group: Group) -> int:
    """Entries of parameters that go when all units go: 1 - prod(1 - share) of each tensor."""
    kept: dict[str, list[float]] = {}
    for piece in dict.fromkeys((*group.makes, *group.reads)):
        tensor = tensors[piece.tensor]
        if isinstance(tensor, nn.Parameter) and piece.dim is not None:
            positions = sum(map(len, unit_slices(tensor, piece, group.units)))
            kept.setdefault(piece.tensor, []).append(1 - positions / tensor.shape[piece.dim])
    return round(sum(tensors[n].numel() * (1 - math.prod(s)) for n, s in kept.items()))


def macs_freed(trace: Trace, found: Sequence[Found]) -> list[int]:
    """Multiply-adds that go with all units of each group, in one pass of the example."""
    owner = {root: number for number, entry in enumerate(found) for root in entry.roots}
    freed = np.zeros(len(found))
    for work in trace.work:
        kept = np.ones(len(found))
        for atoms in work.factors:
            owners = [owner.get(root, -1) for root in trace.atoms.free(atoms).ravel().tolist()]
            counts = np.bincount([n for n in owners if n >= 0], minlength=len(found))
            kept *= 1 - counts / len(owners)
        freed += work.macs * (1 - kept)
    return [round(number) for number in freed.tolist()]
