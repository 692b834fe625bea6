"""The space of a value in the graph: which units its positions belong to.

A factor labels some of the dimensions with an array of atoms. An element of the value stays if its
atoms of all factors stay. Dimensions without a factor are never cut. A factor over one dimension is
a plain list of units. One over several dimensions comes from splitting a dimension by a view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from l0arm.planning.atoms import Array, Atoms


@dataclass(frozen=True, eq=False)
class Factor:
    """Atoms over some dimensions, which are in ascending order. Their sizes are ``atoms.shape``."""

    dims: tuple[int, ...]
    atoms: Array

    def moved(self, to: Mapping[int, int]) -> Factor:
        """The factor after its dimensions were renumbered."""
        new = [to[dim] for dim in self.dims]
        order = sorted(range(len(new)), key=new.__getitem__)
        return Factor(tuple(new[axis] for axis in order), self.atoms.transpose(order))

    def along(self, dim: int) -> int:
        """The axis of ``atoms`` that belongs to a dimension."""
        return self.dims.index(dim)


@dataclass(frozen=True, eq=False)
class Space:
    """Shape and labels of one value."""

    shape: tuple[int, ...]
    factors: tuple[Factor, ...] = ()
    parameter: bool = False  # the value is a parameter, at most reshaped or scaled
    constant: bool = False  # the value depends on parameters alone, not on inputs
    fixed: str = ""  # why dimensions without a label are never cut
    numbers: Array | None = None  # atoms that the integers of this value number, or count in turn

    def at(self, dim: int) -> Factor | None:
        """The factor that labels a dimension."""
        return next((f for f in self.factors if dim in f.dims), None)

    def relabelled(self, factors: Sequence[Factor]) -> Space:
        """The same value with other labels."""
        return replace(self, factors=tuple(factors))

    def moved(self, to: Mapping[int, int], shape: tuple[int, ...]) -> Space:
        """The value with its dimensions renumbered."""
        return replace(self, shape=shape, factors=tuple(f.moved(to) for f in self.factors))


def simplified(atoms: Atoms, space: Space) -> Space:
    """The value whose factors lack dimensions along which units do not differ. One always stays."""
    return space.relabelled([_simple(atoms, f) for f in space.factors])


def _simple(atoms: Atoms, factor: Factor) -> Factor:
    if len(factor.dims) == 1:
        return factor
    roots = atoms.roots(factor.atoms)
    for axis in reversed(range(len(factor.dims))):
        if bool((roots == roots.take([0], axis=axis)).all()):
            dims = factor.dims[:axis] + factor.dims[axis + 1 :]
            return _simple(atoms, Factor(dims, picked(factor.atoms, axis, 0)))
    return factor


def picked(atoms: Array, axis: int, index: int) -> Array:
    """One position along an axis, which is removed."""
    result: Array = np.moveaxis(atoms, axis, 0)[index]
    return result


def line(factor: Factor, axis: int) -> Array:
    """The atoms along one axis, at the first position of the others."""
    return np.moveaxis(factor.atoms, axis, 0).reshape(factor.atoms.shape[axis], -1)[:, 0]


def collapse(atoms: Atoms, factor: Factor, dims: set[int], reason: str) -> Factor:
    """The factor after nothing may be cut along ``dims``.

    Units are united across these dimensions, or pinned if the factor has no other. For example, the
    positions within a head of attention become one unit, the head.
    """
    hit = [axis for axis, dim in enumerate(factor.dims) if dim in dims]
    if not hit:
        return factor
    if len(hit) == len(factor.dims):
        atoms.pin(factor.atoms, reason)
        return factor
    atoms.unite_along(factor.atoms, tuple(hit), reason)
    rest = tuple(dim for dim in factor.dims if dim not in dims)
    first: Array = factor.atoms[
        tuple(0 if a in hit else slice(None) for a in range(len(factor.dims)))
    ]
    return Factor(rest, first)


def mixed(atoms: Atoms, space: Space, dims: set[int], reason: str) -> Space:
    """The value after something mixed its units along ``dims``, as softmax and norms do."""
    space = simplified(atoms, space)
    return space.relabelled([collapse(atoms, f, dims, reason) for f in space.factors])


def without(atoms: Atoms, space: Space, dims: set[int], reason: str) -> Space:
    """The value after a reduction over ``dims``, which are removed."""
    space = mixed(atoms, space, dims, reason)
    kept = [dim for dim in range(len(space.shape)) if dim not in dims]
    to = {dim: place for place, dim in enumerate(kept)}
    factors = tuple(f.moved(to) for f in space.factors if not set(f.dims) & dims)
    return replace(space, shape=tuple(space.shape[d] for d in kept), factors=factors)


def labels(space: Space, dim: int) -> Array:
    """The atoms along a dimension that has a factor of its own, otherwise zeros."""
    factor = space.at(dim)
    if factor is None or len(factor.dims) > 1:
        return np.zeros(space.shape[dim], dtype=np.int64)
    return factor.atoms
