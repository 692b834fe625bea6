"""From united atoms to groups: even cuts, units with one signature, and what each group frees."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from torch import Tensor, nn

from l0arm.gating import Borrow, Group, Pick, Slice, Widen
from l0arm.gating.group import unit_slices
from l0arm.planning.atoms import Array, Atoms
from l0arm.planning.rules.base import Split, Trace

Place = tuple[str, int, bool, bool]  # tensor, dimension, whether it reads there, makes there
Part = TypeVar("Part", Pick, Widen)
Unit = dict[Place, list[int]]  # the positions of a unit at each place


@dataclass(frozen=True, eq=False)
class FoundGroup:
    """A group, and the root atom of each of its units."""

    group: Group
    roots: tuple[int, ...]

    def is_made_by(self, modules: Collection[str]) -> bool:
        """Whether one of these modules makes the units."""
        return any(module_of(piece.tensor) in modules for piece in self.group.makes)


def with_picks(trace: Trace, found: Sequence[FoundGroup]) -> list[FoundGroup]:
    """The groups, each with the constants and inputs that meet its units.

    So with the operations that mix its units and may go on running over all of them.
    """
    return [
        replace(
            entry,
            group=replace(
                entry.group,
                picks=_in_blocks(trace, entry, [(m.pick, m.atoms) for m in trace.meetings]),
                widens=_in_blocks(trace, entry, [(w.widen, w.atoms) for w in trace.widened]),
            ),
        )
        for entry in found
    ]


def _in_blocks(
    trace: Trace, entry: FoundGroup, parts: Sequence[tuple[Part, Array]]
) -> tuple[Part, ...]:
    """The parts whose positions are the units of a group in order, each with its block."""
    own, units = [], len(entry.roots)
    for part, atoms in parts:
        roots = trace.atoms.free_roots(atoms)
        block = int((roots == roots[0]).cumprod().sum())
        if roots[0] and len(roots) % (units * block) == 0:
            rows = roots.reshape(-1, units, block)
            if bool((rows == np.array(entry.roots)[None, :, None]).all()):
                own.append(replace(part, block=block))
    return tuple(dict.fromkeys(own))


def even_out(trace: Trace) -> None:
    """Unite units until every dimension that a view splits varies along one axis only.

    After ``view(b, groups, c, h, w)`` the rest must again be a block: whole groups go, or the same
    positions of every group. Without this, channel shuffle would be silently wrong.
    """
    changed = True
    while changed:
        changed = False
        for split in trace.splits:
            changed |= _even_split(trace.atoms, split)


def _even_split(atoms: Atoms, split: Split) -> bool:
    """Unite the units of a split dimension across all axes but one; whether that was needed."""
    units = atoms.free_roots(split.factor.atoms)
    varying = [a for a in range(units.ndim) if bool((units != units.take([0], axis=a)).any())]
    if len(varying) <= 1:
        return False

    def units_left(axis: int) -> tuple[int, int]:
        rows = np.moveaxis(units, axis, 0).reshape(units.shape[axis], -1)
        merged: list[set[int]] = []  # rows that share a unit become one
        for row in rows:
            new = set(row.tolist())
            apart = [known for known in merged if not known & new]
            merged = [*apart, new.union(*(known for known in merged if known & new))]
        return sum(0 not in row for row in merged), int(rows.all(axis=1).sum())

    best = max(varying, key=lambda axis: (axis == split.open_axis, units_left(axis), -axis))
    others = tuple(axis for axis in range(units.ndim) if axis != best)
    atoms.unite_along(split.factor.atoms, others, f"not removable: {split.where}")
    return True


def find_groups(
    atoms: Atoms,
    tensors: Mapping[str, Tensor],
    borrowed: Mapping[str, Sequence[Borrow]] | None = None,
) -> list[FoundGroup]:
    """All groups of two or more units that something reads and something makes.

    Tensors in ``borrowed``, by name, are read by other modules than their own.
    """
    alike: dict[tuple[tuple[Place, int], ...], list[tuple[int, Unit]]] = defaultdict(list)
    read = atoms.roots_read()
    for root, unit in _units(atoms).items():
        made = any(place[3] for place in unit)
        if root in read and made:
            signature = tuple(sorted((place, len(where)) for place, where in unit.items()))
            alike[signature].append((root, unit))
    found, names = [], set[str]()
    for members in alike.values():
        if len(members) > 1:
            group = _group([unit for _, unit in members], tensors, names)
            names.add(group.name)
            cut = dict.fromkeys(piece.tensor for piece in (*group.makes, *group.reads))
            loans = [loan for tensor in cut for loan in (borrowed or {}).get(tensor, ())]
            group = replace(group, borrows=tuple(loans))
            found.append(FoundGroup(group, tuple(root for root, _ in members)))
    return found


def _units(atoms: Atoms) -> dict[int, Unit]:
    """The positions of every class that may be cut, by its root."""
    units: dict[int, Unit] = {}
    for origin in atoms.origins:
        every = np.arange(origin.first, origin.first + origin.size)
        roots = atoms.free_roots(every)
        free = roots.nonzero()[0]
        places: dict[tuple[bool, bool], Place] = {}  # one object for all its positions
        for position, root in zip(free.tolist(), roots[free].tolist(), strict=True):
            atom = origin.first + position
            marks = (atoms.is_read(atom), atoms.is_made(atom))
            place = places.get(marks)
            if place is None:
                place = places[marks] = (origin.tensor, origin.dim, *marks)
            units.setdefault(root, {}).setdefault(place, []).append(position)
    return units


def _group(units: list[Unit], tensors: Mapping[str, Tensor], names: set[str]) -> Group:
    """Units with one signature as a group, named after the first layer that makes them."""
    slices = {place: _slice(place, [unit[place] for unit in units], tensors) for place in units[0]}
    makes = tuple(piece for place, piece in slices.items() if place[3])
    reads = tuple(piece for place, piece in slices.items() if place[2])
    weights = [piece for piece in makes if tensors[piece.tensor].dim() > 1] or list(makes)
    held_by = module_of(weights[0].tensor).partition(".parametrizations.")[0]
    base = name = held_by or weights[0].tensor
    number = 2
    while name in names:
        name, number = f"{base}#{number}", number + 1
    return Group(name, len(units), reads=reads, makes=makes)


def _slice(place: Place, units: list[list[int]], tensors: Mapping[str, Tensor]) -> Slice:
    """Runs of equal length in order are a block. Anything else is listed."""
    tensor, dim, _, _ = place
    flat = [position for unit in units for position in unit]
    if flat == list(range(tensors[tensor].shape[dim])):
        return Slice(tensor, dim, block=len(units[0]))
    return Slice(tensor, dim, index=tuple(tuple(unit) for unit in units))


def module_of(tensor: str) -> str:
    """The name of the module that holds a tensor."""
    return tensor.rpartition(".")[0]


def weights_freed(tensors: Mapping[str, Tensor], group: Group) -> int:
    """Entries of parameters that go when all units go: 1 - prod(1 - share) of each tensor."""
    kept: dict[str, list[float]] = {}
    for piece in dict.fromkeys((*group.makes, *group.reads)):
        tensor = tensors[piece.tensor]
        if isinstance(tensor, nn.Parameter) and piece.dim is not None:
            positions = sum(map(len, unit_slices(tensor, piece, group.units)))
            kept.setdefault(piece.tensor, []).append(1 - positions / tensor.shape[piece.dim])
    return round(sum(tensors[n].numel() * (1 - math.prod(s)) for n, s in kept.items()))


def macs_freed(trace: Trace, found: Sequence[FoundGroup]) -> list[int]:
    """Multiply-adds of one pass of the example that go with all units of each group."""
    owner = np.full(1 + max((max(e.roots) for e in found), default=0), len(found))
    for number, entry in enumerate(found):
        owner[list(entry.roots)] = number
    freed = np.zeros(len(found))
    for work in trace.work:
        kept = np.ones(len(found))
        for atoms in work.factors:
            roots = trace.atoms.free_roots(atoms).ravel()
            owners = owner[np.where(roots < len(owner), roots, 0)]  # nobody owns atom 0
            counts = np.bincount(owners, minlength=len(found) + 1)[:-1]
            kept *= 1 - counts / len(owners)
        freed += work.macs * (1 - kept)
    return [round(number) for number in freed.tolist()]
