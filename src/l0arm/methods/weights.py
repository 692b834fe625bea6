"""Pruning by weights: masks on single weights, shares to keep, and units left without weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Extra
from l0arm.gating import Gated, Group, Slice
from l0arm.gating.draw import Draw
from l0arm.gating.layout import TensorCut, named_tensors
from l0arm.penalties.norms import per_unit
from l0arm.penalties.strength import Strength, checked, per_group


def key_of(name: str) -> str:
    """The name of a weight as that of a parameter or buffer, which has no dots.

    >>> key_of("fc1.weight")
    'fc1-weight'
    """
    return name.replace(".", "-")


class WeightMasks(Extra):
    """One mask of 0 and 1 for every weight that a group counts, saved with the gated network."""

    def __init__(self, gated: Gated) -> None:
        super().__init__()
        self.names = counted_weights(gated)
        for name in self.names:
            self.register_buffer(key_of(name), torch.ones_like(named_tensors(gated.model)[name]))

    def __getitem__(self, name: str) -> Tensor:
        return self.get_buffer(key_of(name))

    def enforce(self, gated: Gated, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Zero what is masked: the weights and, given an optimizer, its averages."""
        tensors = named_tensors(gated.model)
        with torch.no_grad():
            for name in self.names:
                weight, mask = tensors[name], self[name]
                weight.mul_(mask)
                state = {} if optimizer is None else optimizer.state.get(weight, {})
                for value in state.values():
                    if isinstance(value, Tensor) and value.shape == mask.shape:
                        value.mul_(mask)


def counted_weights(gated: Gated) -> list[str]:
    """The weights that groups count, in the order of the groups."""
    return list(dict.fromkeys(piece.tensor for g in gated.groups for piece in g.counts))


def checked_keep(keep: Strength) -> Strength:
    """``keep`` itself, if every share lies in (0, 1]."""
    checked(keep, "keep")
    if isinstance(keep, Mapping):
        keep_of: Sequence[float] = list(keep.values())
    else:
        keep_of = keep if isinstance(keep, Sequence) else [keep]
    for share in keep_of:
        if not 0 < share <= 1:
            raise ValueError(f"keep is a share in (0, 1], or one per group; got {share!r}")
    return keep


def shares(keep: Strength, gated: Gated) -> list[float]:
    """The share of each group, in order."""
    return per_group(keep, gated.groups, "keep")


@dataclass(frozen=True)
class OnePerGroup:
    """Refuses numbers that do not fit the groups of a model, before it is trained."""

    numbers: Strength
    what: str = "keep"

    def __call__(self, gated: Gated) -> None:
        per_group(self.numbers, gated.groups, self.what)


def largest(values: Tensor, share: float) -> Tensor:
    """1 for the largest entries, as many as the share says and at least one; 0 for the others.

    >>> largest(torch.tensor([3.0, 1.0, 2.0, 0.5]), 0.5)
    tensor([1., 0., 1., 0.])
    """
    count = max(1, round(share * values.numel()))
    mask = torch.zeros(values.numel(), dtype=values.dtype, device=values.device)
    mask[values.flatten().topk(count).indices] = 1.0
    return mask.view_as(values)


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
