"""One value of every gate, and what it keeps of every dimension that is cut."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.groups.layout import Axis, Layout, Reach


@dataclass(frozen=True)
class Kept:
    """What a draw leaves of one dimension. ``None`` means: all of it, or nothing to do."""

    index: Tensor | None = None  # positions kept
    fold: Tensor | None = None  # factors of the kept positions, where readers are scaled
    local: Tensor | None = None  # kept positions among those that still arrive (input to gather)
    written: Tensor | None = None  # which kept positions are really open: buffers keep the others


class Draw:
    """z for all gates at once (Eq. 2), turned into positions on demand and only once per axis.

    A group whose gates are all closed keeps its first unit as a stand-in: the layers around it
    still run, and since its readers' columns are zero, loss and gradients are exact.
    """

    def __init__(self, layout: Layout, z: Tensor, *, sliced: bool = True, writes: bool = True):
        self.layout, self.z, self.sliced, self.writes = layout, z, sliced, writes
        self.open = z.detach() != 0
        counts = [
            int(part.sum()) for part in torch.split(self.open, [g.units for g in layout.groups])
        ]
        self.counts = counts
        self.full = [n == group.units for n, group in zip(counts, layout.groups, strict=True)]
        self.empty = [number for number, n in enumerate(counts) if n == 0]
        self.kept_gates = self.open
        if self.empty:
            self.kept_gates = self.open.clone()
            self.kept_gates[[layout.offsets[number] for number in self.empty]] = True
        # Fractions (a thresholded mean, a relaxed gate) and gates with a graph are multiplied in.
        self.binary = not z.requires_grad and bool((z == self.open).all())
        self._memo: dict[Axis, Kept] = {}
        if not self.binary:
            self._refuse_fractions()

    def units_kept(self, group: int) -> int:
        """How many units of a group are computed: the open ones, or its stand-in."""
        return max(1, self.counts[group])

    def kept(self, axis: Axis) -> Kept:
        """Positions to keep along an axis, for sliced execution."""
        if self.z.requires_grad:  # its graph belongs to one pass; a recomputation needs its own
            return self._cut(axis)
        if axis not in self._memo:
            self._memo[axis] = self._cut(axis)
        return self._memo[axis]

    def without_writing(self) -> Draw:
        """The same draw for a pass that must leave no trace in the buffers."""
        twin = copy.copy(self)
        twin.writes, twin._memo = False, {}  # it may be kept for long: positions on demand
        return twin

    def mask(self, axis: Axis) -> Tensor | None:
        """The factor of every position, nothing dropped: for masked execution."""
        folds = [r for r in axis.reaches if r.folds and not (self.full[r.group] and self.binary)]
        return self._product(folds) if folds else None

    def open_positions(self, axis: Axis) -> Tensor:
        """Where every group that cuts the axis is open."""
        return self.open_by(axis.reaches)

    def open_by(self, reaches: Sequence[Reach]) -> Tensor:
        """Where all of these groups are open."""
        return self._all(reaches, self.open)

    def of_group(self, group: int) -> Tensor:
        """The gates of one group."""
        return self.z[self.layout.span(group)]

    def _refuse_fractions(self) -> None:
        for number in self.layout.twice:
            span = self.layout.span(number)
            if self.z.requires_grad or bool((self.z[span] != self.open[span]).any()):
                raise ValueError(
                    f"group '{self.layout.groups[number].name}' reads and makes one tensor (tied "
                    "weights): a gate between 0 and 1 would be multiplied in twice; pass gates "
                    "that are 0 or 1, or untie the weights"
                )

    def _cut(self, axis: Axis) -> Kept:
        closing = [r for r in axis.reaches if not self.full[r.group]]
        cutting = [r for r in closing if r.drops]
        if not cutting:
            return Kept(fold=self.mask(axis))
        sending = [r for r in cutting if not r.selects]
        selecting = [r for r in cutting if r.selects]
        sent = self._all(sending, self.kept_gates) if sending else None
        kept = self._all(cutting, self.kept_gates) if selecting or sent is None else sent
        stand_in = any(r.group in self.empty for r in cutting)
        zeroing = len(closing) > len(cutting)
        if len(cutting) > 1 and not kept.any():  # the groups share no open position
            kept = torch.zeros_like(kept)
            kept[0 if sent is None else int(sent.nonzero()[0])] = True
            stand_in = True
        index = kept.nonzero().squeeze(1)
        folds = [r for r in axis.reaches if r.folds]
        multiplies = stand_in or zeroing or not self.binary
        fold = self._product(folds)[index] if folds and multiplies else None
        written = self.open_positions(axis)[index] if stand_in else None
        return Kept(index, fold, _local(kept, sent, index) if selecting else None, written)

    def _all(self, reaches: Sequence[Reach], gates: Tensor) -> Tensor:
        """1 where every one of the groups has its gate set."""
        padded: Tensor | None = None
        result: Tensor | None = None
        for reach in reaches:
            if reach.plain:
                mask = gates[self.layout.span(reach.group)]
            else:
                padded = _with_open_end(gates) if padded is None else padded
                mask = padded[reach.gates_on(gates.device)]
            result = mask if result is None else result & mask
        assert result is not None
        return result

    def _product(self, reaches: list[Reach]) -> Tensor:
        """The product of the groups' gates at every position (Eq. 2), with its graph."""
        padded = _with_open_end(self.z)
        result = padded[reaches[0].gates_on(self.z.device)]
        for reach in reaches[1:]:
            result = result * padded[reach.gates_on(self.z.device)]
        return result


def _with_open_end(gates: Tensor) -> Tensor:
    """The flat gates and, at number V, one that is always open."""
    return torch.cat([gates, gates.new_ones(1)])


def _local(kept: Tensor, sent: Tensor | None, index: Tensor) -> Tensor | None:
    """Kept positions counted among those that the producer still sends."""
    if sent is None:
        return index
    local = kept[sent].nonzero().squeeze(1)
    return None if local.numel() == int(sent.sum()) else local
