"""Atoms: one per position of every dimension of every parameter. Those cut together are united.

Atom 0 stands for a position that is never cut. A class of united atoms is a unit. It is pinned,
with the reason, if something in the network needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Origin:
    """Where a run of atoms comes from: dimension ``dim`` of a named tensor."""

    tensor: str
    dim: int
    first: int
    size: int


class Atoms:
    """Union-find over atoms, with pins and marks.

    >>> atoms = Atoms()
    >>> rows, columns = atoms.create("fc1.weight", 0, 3), atoms.create("fc2.weight", 1, 3)
    >>> atoms.unite(rows, columns, "")
    >>> atoms.pin(rows[:1], "reaches the output")
    >>> atoms.reason(int(columns[0])), atoms.reason(int(columns[1]))
    ('reaches the output', None)
    """

    def __init__(self) -> None:
        self.origins: list[Origin] = []
        self.unused_tensors: set[str] = set()  # used only by what reaches no output
        self._parent: Array = np.zeros(1, dtype=np.int64)
        self._pinned: dict[int, str] = {}  # root -> why
        self._is_pinned: npt.NDArray[np.bool_] = np.ones(1, dtype=np.bool_)
        self._read: set[int] = set()
        self._made: set[int] = set()
        self._unused_reads: set[int] = set()  # by what reaches no output
        self._factors: set[int] = set()  # read, and not made: what these rows make is multiplied

    def create(self, tensor: str, dim: int, size: int) -> Array:
        """New atoms for the positions of one dimension."""
        first = len(self._parent)
        new = np.arange(first, first + size)
        self._parent = np.concatenate([self._parent, new])
        self._is_pinned = np.concatenate([self._is_pinned, np.zeros(size, dtype=np.bool_)])
        self.origins.append(Origin(tensor, dim, first, size))
        return new

    def create_alike(self, size: int) -> Array:
        """New atoms for positions that all hold the same value. They belong to no tensor."""
        origins = list(self.origins)
        new = self.create("", 0, size)
        self.origins = origins
        return new

    def roots(self, atoms: Array) -> Array:
        """The representative of each atom's class."""
        root = self._parent[atoms]
        while True:
            above = self._parent[root]
            if np.array_equal(above, root):
                self._parent[atoms] = root
                return root
            root = above

    def free_roots(self, atoms: Array) -> Array:
        """The roots of these atoms, with 0 for everything that is never cut."""
        roots = self.roots(atoms)
        return np.where(self._is_pinned[roots], 0, roots)

    def unite(self, left: Array, right: Array, reason: str) -> None:
        """Make each pair one unit. An atom paired with a position that is never cut is pinned."""
        pairs = np.stack([a.ravel() for a in np.broadcast_arrays(left, right)])
        pairs = self.roots(pairs)
        pairs = np.unique(np.sort(pairs[:, pairs[0] != pairs[1]], axis=0), axis=1)
        low, high = pairs
        if low.all() and np.unique(high).size == high.size and not np.isin(high, low).any():
            self._parent[high] = low  # no class has a part in two pairs below it
            pinned = self._is_pinned[high]
            for one, other in zip(low[pinned].tolist(), high[pinned].tolist(), strict=True):
                self._fix(one, self._pinned[other])
            return
        for one, other in pairs.T.tolist():
            self._join(one, other, reason)

    def unite_along(self, atoms: Array, axes: tuple[int, ...], reason: str) -> None:
        """Make all positions along these axes of an array one unit."""
        first = atoms
        for axis in axes:
            first = first.take([0], axis=axis)
        self.unite(atoms, first, reason)

    def pin(self, atoms: Array, reason: str) -> None:
        """Mark classes as never cut. If there are several reasons, the first one is reported."""
        for root in np.unique(self.roots(atoms.ravel())).tolist():
            if root:
                self._fix(root, reason)

    def reason(self, atom: int) -> str | None:
        """Why an atom's class is never cut, or None."""
        root = self._root(atom)
        return "it is never cut" if root == 0 else self._pinned.get(root)

    def _join(self, one: int, other: int, reason: str) -> None:
        low, high = sorted((self._root(one), self._root(other)))
        if low == high:
            return
        if low == 0:
            self._fix(high, reason)
            return
        self._parent[high] = low
        if high in self._pinned:
            self._fix(low, self._pinned[high])

    def _fix(self, root: int, reason: str) -> None:
        self._pinned.setdefault(root, reason)
        self._is_pinned[root] = True

    def _root(self, atom: int) -> int:
        while self._parent[atom] != atom:
            atom = int(self._parent[atom])
        return atom

    @contextmanager
    def unused(self) -> Iterator[None]:
        """For operations that reach no output: units are united inside, nothing is pinned.

        A unit that is read only inside is no unit of the network.
        """
        pinned, flags, reads = dict(self._pinned), self._is_pinned.copy(), set(self._read)
        yield
        self._unused_reads |= self._read - reads
        self._pinned = pinned
        self._is_pinned[: len(flags)] = flags
        self._is_pinned[len(flags) :] = False
        for root in [r for r in pinned if self._parent[r] != r]:  # united with another since
            self._fix(self._root(root), pinned[root])

    def mark_read(self, atoms: Array) -> None:
        """A weight multiplies what arrives at these positions: zeroing them closes a unit."""
        self._read.update(atoms.ravel().tolist())

    def mark_factor(self, atoms: Array, *, only: bool) -> None:
        """Zeros at these positions close a unit, though they make it. ``only``: they read only."""
        self.mark_read(atoms)
        if only:
            self._factors.update(atoms.ravel().tolist())

    def mark_made(self, atoms: Array) -> None:
        """These positions label a value that is computed."""
        self._made.update(atoms.ravel().tolist())

    def is_read(self, atom: int) -> bool:
        """Whether a weight reads at this position."""
        return atom in self._read

    def is_label(self, atom: int) -> bool:
        """Whether the position labels a value that is computed."""
        return atom in self._made

    def is_made(self, atom: int) -> bool:
        """Whether the position makes a unit. A position of a tied weight may read and make."""
        is_label = self.is_label(atom) and atom not in self._factors
        return is_label or not self.is_read(atom)

    def members(self, atoms: Array) -> Array:
        """All atoms of the classes of these."""
        roots = self.roots(np.arange(len(self._parent)))
        members: Array = np.isin(roots, self.roots(atoms.ravel())).nonzero()[0]
        return members

    def roots_read(self) -> set[int]:
        """The free classes that a weight reads on a way to an output."""
        reads = sorted(self._read - self._unused_reads)
        return set(self.free_roots(np.array(reads, dtype=np.int64)).tolist()) - {0}
