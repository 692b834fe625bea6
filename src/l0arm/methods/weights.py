"""Pruning by weights: how many to keep, which are the largest, and units left without weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.gating import Gated, Group, Slice
from l0arm.gating.draw import Draw
from l0arm.gating.layout import TensorCut, named_tensors
from l0arm.penalties.norms import per_unit
from l0arm.penalties.strength import Strength, checked, per_group


def key_of(name: str) -> str:
    """The name of a weight as that of a parameter or buffer, which must not contain dots.

    >>> key_of("fc1.weight")
    'fc1-weight'
    """
    return name.replace(".", "-")


def counted_weights(gated: Gated) -> list[str]:
    """The names of the weights that groups count, in the order of the groups."""
    return list(dict.fromkeys(piece.tensor for g in gated.groups for piece in g.counts))


def checked_keep(keep: Strength) -> Strength:
    """``keep`` itself, if every share lies in (0, 1]."""
    checked(keep, "keep")
    if isinstance(keep, Mapping):
        shares: Sequence[float] = list(keep.values())
    else:
        shares = keep if isinstance(keep, Sequence) else [keep]
    for share in shares:
        if not 0 < share <= 1:
            raise ValueError(f"keep is a share in (0, 1], or one per group; got {share!r}")
    return keep


def keep_of_groups(keep: Strength, gated: Gated) -> list[float]:
    """The share to keep of each group, in order."""
    return per_group(keep, gated.groups, "keep")


@dataclass(frozen=True)
class OnePerGroup:
    """A method's ``check`` that refuses numbers that do not fit the groups of the model."""

    numbers: Strength
    what: str = "keep"

    def __call__(self, gated: Gated) -> None:
        per_group(self.numbers, gated.groups, self.what)


def largest(values: Tensor, share: float) -> Tensor:
    """A mask of the largest entries: the given share of them, and at least one.

    >>> largest(torch.tensor([3.0, 1.0, 2.0, 0.5]), 0.5)
    tensor([1., 0., 1., 0.])
    """
    count = max(1, round(share * values.numel()))
    mask = torch.zeros(values.numel(), dtype=values.dtype, device=values.device)
    mask[values.flatten().topk(count).indices] = 1.0
    return mask.view_as(values)


def alive_units(gated: Gated) -> Tensor:
    """1 for every open unit with nonzero weights coming in and going out, else 0.

    The weights of dead units do not count, so this is repeated until nothing changes. A unit with
    no weights coming in would send a constant made of its bias. It is closed, and the constant is
    dropped.
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
        remaining = z * connected
        if torch.equal(remaining, z):
            return z
        z = remaining


def _live(tensor: Tensor, spec: TensorCut, draw: Draw) -> Tensor:
    """1 for weights that are neither 0 nor part of a closed unit."""
    live = tensor.detach() != 0
    for dim, axis in spec.axes.items():
        shape = [1] * tensor.dim()
        shape[dim] = -1
        live = live & torch.from_numpy(draw.open_positions(axis)).to(live.device).view(shape)
    return live.to(torch.float32)


def _connected(group: Group, live: dict[str, Tensor]) -> Tensor:
    """1 for units that have a live weight going out and, if anything makes them, one coming in."""
    read = _any(group, group.reads, live)
    made = [piece for piece in group.makes if piece.tensor in live]
    return read * _any(group, made, live) if made else read


def _any(group: Group, pieces: Sequence[Slice], live: dict[str, Tensor]) -> Tensor:
    """1 for units with a live weight in one of these slices."""
    counts = [per_unit(live[p.tensor], p, group.units) for p in pieces if p.tensor in live]
    if not counts:  # only biases or scales, which do not show that a unit is dead
        return torch.ones(group.units)
    return (sum(counts[1:], counts[0]) > 0).to(torch.float32)
