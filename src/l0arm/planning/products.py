"""A dimension split by a view must be cut evenly, along one of its parts.

After ``view(b, groups, c, h, w)`` what remains must again be a block: whole groups go, or the same
positions of every group. Left out, channel shuffle would be silently wrong.
"""

from __future__ import annotations

import numpy as np

from l0arm.planning.atoms import Array
from l0arm.planning.site import Trace
from l0arm.planning.space import Factor


def even_out(trace: Trace) -> None:
    """Unite units until every split dimension varies along one axis only."""
    changed = True
    while changed:
        changed = False
        for factor, where, open_axis in trace.joint:
            changed |= _one_axis(trace, factor, where, open_axis)


def _one_axis(trace: Trace, factor: Factor, where: str, open_axis: int | None) -> bool:
    units = trace.atoms.free(factor.atoms)
    varying = [axis for axis in range(units.ndim) if not _constant(units, axis)]
    if len(varying) <= 1:
        return False
    best = max(varying, key=lambda axis: (axis == open_axis, _units_left(units, axis), -axis))
    others = tuple(axis for axis in range(units.ndim) if axis != best)
    reason = f"not removable: {where}"
    # Free units meet pinned ones in an array of their own, so that the reason told is this one.
    trace.atoms.unite_along(factor.atoms, others, reason)
    rest = np.moveaxis(units, best, 0).reshape(units.shape[best], -1)
    for row, atoms in zip(rest, np.moveaxis(factor.atoms, best, 0), strict=True):
        if not row.all():
            trace.atoms.pin(atoms, reason)
    return True


def _constant(units: Array, axis: int) -> bool:
    return bool((units == units.take([0], axis=axis)).all())


def _units_left(units: Array, axis: int) -> int:
    """How many positions of an axis would still be free if units were united across the others."""
    rows = np.moveaxis(units, axis, 0).reshape(units.shape[axis], -1)
    return int(rows.all(axis=1).sum())
