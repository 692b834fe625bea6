"""One value of every gate, and the positions that it keeps of every dimension that is cut.

Positions are computed on the host with numpy. The shapes of a pass depend on them, so a GPU has to
wait for them in any case. For a few hundred gates numpy is several times faster than torch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from l0arm.gating.group import Patch
from l0arm.gating.host import HOST
from l0arm.gating.layout import Axis, Layout, Reach
from l0arm.gating.validation import way_out, why_binary

Mask = npt.NDArray[np.bool_]
FEW = 16  # gates that changed: so many are counted one by one


@dataclass(slots=True)  # not frozen: a step makes many, and that takes twice as long
class Kept:
    """What a draw keeps of one dimension. None: all of it, or nothing to do."""

    index: Tensor | None = None  # positions kept
    fold: Tensor | None = None  # factors of the kept positions, where readers are scaled
    local: Tensor | None = None  # kept positions among those that still arrive (input to gather)
    written: Tensor | None = None  # kept positions that are open. Stand-ins write no buffer.


ALL = Kept()


class Draw:
    """z for all gates (Eq. 2), turned into positions on demand and once per axis.

    A group whose gates are all closed keeps its first unit as a stand-in, so that the layers around
    it still run. Its readers' columns are zero: loss and gradients are exact. If fewer experts are
    open than a router chooses, there are stand-ins for the rest. So there are up to the next of
    ``multiples`` of a group, as far as it has units (widths.py).
    """

    def __init__(
        self,
        layout: Layout,
        z: Tensor,
        *,
        sliced: bool = True,
        writes: bool = True,
        known: Sequence[Draw] = (),
        multiples: Sequence[int] | None = None,
    ) -> None:
        _check_length(z, layout.gates)
        self.layout, self.z, self.sliced, self.writes = layout, z, sliced, writes
        self.multiples = multiples
        self.repeats = False  # whether it has the same gates as a known one
        self._graph = z.requires_grad
        host = HOST.values(z)
        self._host: Tensor
        similar = [] if self._graph else [draw for draw in known if self._comparable(draw)]
        for draw in similar:  # one that was repeated may be so again
            if draw.repeats and torch.equal(host, draw._host):
                self._take_over(draw)
                return
        self._host = host.clone() if host.data_ptr() == z.data_ptr() else host  # z may change
        self._values: npt.NDArray[Any] = self._host.numpy()
        self._memo: dict[Axis, Kept] = {}
        self._units: dict[int, Tensor] = {}  # open units of a group
        self._twin: Draw | None = None
        self._other: Tensor | None = None  # the values of the draw that ``_moved`` refers to
        self._moved: list[bool] = []  # groups whose gates differ from that draw
        if similar and self._follows(similar[0]):
            return
        self._open: Mask = np.ones(layout.gates + 1, dtype=np.bool_)  # the last gate never closes
        is_open = self._open[:-1]
        np.not_equal(self._values, 0, out=is_open)
        self.counts: list[int] = np.add.reduceat(is_open, layout.offsets, dtype=np.int64).tolist()
        self.full = [n == units for n, units in zip(self.counts, layout.units, strict=True)]
        self._find_short()
        # Fractions (a thresholded mean, a relaxed gate) and gates with a graph are multiplied in.
        self.binary = not self._graph and not np.count_nonzero(self._values != is_open)
        self.dense = self.binary and all(self.full)  # nothing to cut, nothing to multiply
        if not self.binary:
            self._refuse_fractions()
        elif similar:
            changed = np.not_equal(is_open, similar[0]._open[:-1])
            self._adopt(similar[0], np.logical_or.reduceat(changed, layout.offsets).tolist())

    def _take_over(self, like: Draw) -> None:
        """Everything that is known of another draw, which has the same gates."""
        z, writes = self.z, self.writes
        # Only a dense one never reads its z, so its twin can be that of another draw.
        twin = like._twin if like.dense else None
        vars(self).update(vars(like), z=z, writes=writes, repeats=True, _twin=twin)

    def _find_short(self) -> None:
        """Groups that need stand-ins, and those of them without any open unit."""
        self.least = self.layout.least
        if self.multiples is not None:
            wished = [
                up if (up := -(-left // multiple) * multiple) <= units else 0
                for left, multiple, units in zip(
                    self.counts, self.multiples, self.layout.units, strict=True
                )
            ]
            self.least = list(map(max, self.least, wished))
        self.short = [n for n, left in enumerate(self.counts) if left < self.least[n]]
        self.empty = [n for n in self.short if not self.counts[n]]

    def _comparable(self, like: Draw) -> bool:
        """Whether positions of another draw are positions of this one where gates agree."""
        alike = like.layout is self.layout and like.sliced == self.sliced
        alike = alike and like.multiples == self.multiples
        z, other = self.z, like.z
        return like.binary and alike and other.dtype == z.dtype and other.device == z.device

    @cached_property
    def _kept_gates(self) -> Mask:
        """The open gates and the stand-ins."""
        if not self.short:
            return self._open
        mask = self._open.copy()
        for number in self.short:
            gates = mask[self.layout.span(number)]
            missing = self.least[number] - self.counts[number]
            gates[(~gates).nonzero()[0][:missing]] = True
        return mask

    def _follows(self, like: Draw) -> bool:
        """Whether no or few gates differ from another draw: only what they change is computed."""
        differ = np.not_equal(self._values, like._values).nonzero()[0]
        if not differ.size:
            self._take_over(like)
        if not 0 < differ.size <= FEW:
            return self.repeats
        changed, values = differ.tolist(), self._values[differ].tolist()
        if not {0.0, 1.0}.issuperset(values):
            return False
        layout, moved = self.layout, [False] * len(self.layout.groups)
        self._open, self.counts, self.full = like._open.copy(), like.counts[:], like.full[:]
        for gate, value in zip(changed, values, strict=True):
            group = bisect_right(layout.offsets, gate) - 1
            self._open[gate], moved[group] = value, True
            self.counts[group] += 1 if value else -1
            self.full[group] = self.counts[group] == layout.units[group]
        self._find_short()
        self.binary, self.dense = True, all(self.full)
        self._adopt(like, moved)
        return True

    def _adopt(self, like: Draw, moved: list[bool]) -> None:
        """Reuse the position tensors of another draw wherever the gates agree.

        Operations are shared between two passes by the identity of their inputs.
        """
        self._other, self._moved = like._host, moved
        for axis, kept in like._memo.items() if not self.dense else ():
            if not any(moved[reach.group] for reach in axis.reaches):
                self._memo[axis] = kept
        for group, units in like._units.items():
            if not moved[group]:
                self._units[group] = units

    def agrees(self, other: Draw, group: int) -> bool:
        """Whether the gates of a group are equal in both draws."""
        if self._other is other._host:
            return not self._moved[group]
        span = self.layout.span(group)
        return bool((self._values[span] == other._values[span]).all())

    def equals(self, other: Draw) -> bool:
        """Whether all gates are equal in both draws."""
        return bool((self._values == other._values).all())

    def is_open(self, gate: int) -> bool:
        """Whether a gate, by its flat number, is not 0."""
        return bool(self._open[gate])

    def is_absent(self, tensor: str) -> bool:
        """Whether a tensor belongs to modules of a closed residual branch."""
        return any(b.holds(tensor) and not self.is_open(gate) for gate, b in self.layout.branches)

    def units_kept(self, group: int) -> int:
        """How many units of a group are computed: the open ones and stand-ins."""
        return max(1, self.least[group], self.counts[group])

    def count_left(self, full: int, patches: Sequence[tuple[Patch, int]]) -> int:
        """What is left of a number that counts units, by its patches and their groups.

        ``full`` is the number of the dense network. If it counts nothing but the units of a group,
        it shrinks in proportion: those of several groups are then factors, heads times positions
        in a head. Otherwise it is a sum with other units.
        """
        left = full
        for patch, group in patches:
            kept, units = self.units_kept(group), self.layout.units[group]
            if patch.per_unit * units == full:
                left = left * kept // units
            else:
                left -= patch.per_unit * (units - kept)
        return left

    def units_left(self, group: int) -> tuple[int, ...]:
        """The units of a group that are computed: the open ones, or its stand-in."""
        left = self._kept_gates[:-1][self.layout.span(group)]
        return tuple(left.nonzero()[0].tolist())

    def units_standing_in(self, group: int) -> tuple[int, ...]:
        """The closed units among those that run, counted among them.

        Masked, all units run. Sliced, closed ones do only as stand-ins.
        """
        span = self.layout.span(group)
        is_open = self._open[:-1][span]
        running = self._kept_gates[:-1][span] if self.sliced else np.ones_like(is_open)
        return tuple((~is_open[running]).nonzero()[0].tolist())

    def kept(self, axis: Axis) -> Kept:
        """Positions to keep along an axis, for sliced execution."""
        kept = self._memo.get(axis)
        if kept is None:
            kept = self._cut(axis)
            if not self._graph:  # it belongs to one pass; a recomputation needs its own
                self._memo[axis] = kept
        return kept

    def without_writing(self) -> Draw:
        """The same draw for a pass that must not write buffers."""
        if self._twin is None:
            twin = self._twin = Draw.__new__(Draw)
            twin.__dict__.update(self.__dict__, writes=False, _twin=None)
            twin._memo, twin._units = {}, {}  # it may be kept for long: positions on demand
        return self._twin

    def rounded(self) -> Draw:
        """The same units open, with every gate 0 or 1."""
        open_gates = torch.from_numpy(self._open[:-1]).to(self.z.device, self.z.dtype)
        return Draw(self.layout, open_gates, sliced=self.sliced, writes=self.writes)

    def mask(self, axis: Axis) -> Tensor | None:
        """The factor of every position, for masked execution."""
        return self._factors(axis.reaches)

    def _factors(self, reaches: Sequence[Reach]) -> Tensor | None:
        folds = [r for r in reaches if r.folds and not (self.full[r.group] and self.binary)]
        return self._product(folds) if folds else None

    def open_positions(self, axis: Axis) -> Mask:
        """Where every group that cuts the axis is open."""
        return self.open_by(axis.reaches)

    def open_by(self, reaches: Sequence[Reach]) -> Mask:
        """Where all of these groups are open."""
        return self._all(reaches, self._open)

    def of_group(self, group: int) -> Tensor:
        """The gates of one group."""
        return self.z[self.layout.span(group)]

    def positions(self, mask: npt.NDArray[np.generic]) -> Tensor:
        """The numbers of the positions that are not zero, on the model's device."""
        index = torch.from_numpy(mask.nonzero()[0])
        return index if self.z.device.type == "cpu" else index.to(self.z.device)

    def _refuse_fractions(self) -> None:
        for number in self.layout.twice:
            span = self.layout.span(number)
            if self._graph or bool((self._values[span] != self._open[span]).any()):
                group = self.layout.groups[number]
                raise ValueError(
                    f"group '{group.name}' {why_binary(group)}: a gate between 0 and 1 would be "
                    f"multiplied in twice; pass gates that are 0 or 1, or {way_out(group)}"
                )

    def _cut(self, axis: Axis) -> Kept:
        if axis.single is not None and self.binary and axis.single.group not in self.short:
            return self._cut_by_one(axis.single)
        reaches = axis.within
        closing = [r for r in reaches if not self.full[r.group]]
        cutting = [r for r in closing if r.drops]
        if not cutting:
            return Kept(fold=self._factors(reaches))
        sending = [r for r in cutting if not r.selects]
        sent = self._all(sending, self._kept_gates) if sending else None
        selects = len(sending) < len(cutting)
        kept = sent if sent is not None and not selects else self._all(cutting, self._kept_gates)
        stand_in = any(r.group in self.short for r in cutting)
        if not kept.any():  # the groups share no open position
            kept = np.arange(kept.size) == (0 if sent is None else int(sent.argmax()))
            stand_in = True
        index = self.positions(kept)
        folds = [r for r in reaches if r.folds]
        multiplies = stand_in or len(closing) > len(cutting) or not self.binary
        fold = self._product(folds)[index] if folds and multiplies else None
        written = torch.from_numpy(self.open_by(reaches)[kept]) if stand_in else None
        return Kept(index, fold, self._local(kept, sent, index) if selects else None, written)

    def _cut_by_one(self, reach: Reach) -> Kept:
        """The common case: one group, unit by unit, binary gates, no stand-in."""
        group = reach.group
        if self.full[group]:
            return ALL
        if not reach.drops:
            return Kept(fold=self._product([reach]) if reach.folds else None)
        index = self._units.get(group)
        if index is None:  # shared by all tensors that the group cuts
            index = self._units[group] = self.positions(self._open[self.layout.span(group)])
        return Kept(index, None, index if reach.selects else None)

    def _local(self, kept: Mask, sent: Mask | None, index: Tensor) -> Tensor | None:
        """Kept positions counted among those that the producer still sends."""
        if sent is None:
            return index
        arriving = kept[sent]
        return None if arriving.all() else self.positions(arriving)

    def _all(self, reaches: Sequence[Reach], gates: Mask) -> Mask:
        """Where every one of the groups has its gate set."""
        masks = [gates[self.layout.span(r.group)] if r.plain else gates[r.numbers] for r in reaches]
        result = masks[0]
        for mask in masks[1:]:
            result = result & mask
        return result

    def _product(self, reaches: list[Reach]) -> Tensor:
        """The product of the groups' gates at every position (Eq. 2), with its graph."""
        padded = torch.cat([self.z, self.z.new_ones(1)])
        result = padded[reaches[0].gates_on(self.z.device)]
        for reach in reaches[1:]:
            result = result * padded[reach.gates_on(self.z.device)]
        return result


def _check_length(z: Tensor, gates: int) -> None:
    if z.shape != (gates,):
        raise ValueError(
            f"a draw is a flat vector of {gates} gates, one per unit of all groups; "
            f"got shape {tuple(z.shape)}"
        )
