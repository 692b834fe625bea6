"""From united atoms to groups: units with one signature form a group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from l0arm.gating import Group, Slice
from l0arm.planning.atoms import Atoms

Place = tuple[str, int, bool, bool]  # tensor, dimension, whether it reads there, makes there
Unit = dict[Place, list[int]]


@dataclass(frozen=True, eq=False)
class Found:
    """A group, and the root atom of each of its units."""

    group: Group
    roots: tuple[int, ...]


def find_groups(atoms: Atoms, dims: Mapping[str, Sequence[int]]) -> list[Found]:
    """All groups of two or more units that something reads and something makes."""
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
            group = _group(members, dims, names)
            names.add(group.name)
            found.append(Found(group, tuple(root for root, _ in members)))
    return found


def _units(atoms: Atoms) -> dict[int, Unit]:
    """The positions of every class that may be cut."""
    units: dict[int, Unit] = {}
    for birth in atoms.births:
        own = np.arange(birth.first, birth.first + birth.size)
        for position, root in enumerate(atoms.free(own).tolist()):
            if root:
                atom = birth.first + position
                place = (birth.tensor, birth.dim, atoms.is_read(atom), atoms.is_made(atom))
                units.setdefault(root, {}).setdefault(place, []).append(position)
    return units


def _group(
    members: list[tuple[int, Unit]], dims: Mapping[str, Sequence[int]], names: set[str]
) -> Group:
    places = list(members[0][1])
    slices = {place: _slice(place, [unit[place] for _, unit in members], dims) for place in places}
    makes = tuple(piece for place, piece in slices.items() if place[3])
    reads = tuple(piece for place, piece in slices.items() if place[2])
    weights = [piece for piece in makes if len(dims[piece.tensor]) > 1] or list(makes)
    base = name = module_of(weights[0].tensor) or weights[0].tensor
    number = 2
    while name in names:
        name, number = f"{base}#{number}", number + 1
    return Group(name, len(members), reads=reads, makes=makes)


def _slice(place: Place, units: list[list[int]], dims: Mapping[str, Sequence[int]]) -> Slice:
    """Runs of equal length in order are a block; anything else is listed."""
    tensor, dim, _, _ = place
    flat = [position for unit in units for position in unit]
    if flat == list(range(dims[tensor][dim])):
        return Slice(tensor, dim, block=len(units[0]))
    return Slice(tensor, dim, index=tuple(tuple(unit) for unit in units))


def module_of(tensor: str) -> str:
    """The module that holds a tensor, by name."""
    return tensor.rpartition(".")[0]
