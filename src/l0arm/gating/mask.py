"""Which units of a gated model stay: z-bar (Eq. 14), re-opened units, dead structure."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from l0arm.contracts import Gates
from l0arm.gates.threshold import valley
from l0arm.gating.draw import Draw, Mask
from l0arm.gating.layout import Layout, TensorCut

Threshold = float | Literal["valley"]


def deterministic_mask(layout: Layout, gates: Gates, threshold: Threshold, multiple: int) -> Tensor:
    """z-bar of all gates.

    Units are re-opened up to the floor of their group, and to widths that are multiples of
    ``multiple``. A group that reads and makes one tensor (tied weights) would fold a fraction
    twice, so its gates are rounded to 0 or 1.
    """
    z = gates.deterministic(_tau(layout, gates.probs, threshold))
    for number, group in enumerate(layout.groups):
        is_open = int((z[layout.span(number)] != 0).sum())
        units = group.units_for(multiple)
        width = max(group.floor, min(-(-is_open // units) * units, group.units))
        if width > is_open:
            reopen(z, layout.span(number), gates, width)
    for span in map(layout.span, layout.twice):
        z[span] = (z[span] != 0).to(z.dtype)
    return z


def checked_threshold(tau: Threshold) -> Threshold:
    """Validate a threshold: a number strictly between 0 and 1, or 'valley'."""
    if tau != "valley" and not (isinstance(tau, int | float) and 0.0 < tau < 1.0):
        raise ValueError(
            f"threshold must lie strictly between 0 and 1, or be 'valley'; got {tau!r}"
        )
    return tau


def checked_multiple(multiple: int) -> int:
    """Validate a multiple of widths: a positive integer."""
    if not isinstance(multiple, int) or multiple < 1:
        raise ValueError(f"width_multiple must be an integer >= 1; got {multiple!r}")
    return multiple


def _tau(layout: Layout, pi: Tensor, threshold: Threshold) -> Tensor | float:
    """The threshold of every gate: one number, or the valley of each group's histogram."""
    if threshold != "valley":
        return threshold
    valleys = [valley(pi[layout.span(n)]) for n in range(len(layout.groups))]
    return pi.new_tensor(valleys)[layout.group_of.to(pi.device)]


def reopen(z: Tensor, span: slice, gates: Gates, width: int) -> None:
    """Re-open the most probable closed units of a group, in place, until ``width`` are open.

    A re-opened unit gets the value of its gate without a threshold: g(phi) for Bernoulli gates.
    Where this value is 0 (hard concrete gates), it gets the smallest positive number. The unit is
    then kept, but adds nothing.
    """
    missing = width - int((z[span] != 0).sum())
    if missing <= 0:
        return
    values, tiny = gates.kept_value(), torch.finfo(z.dtype).tiny
    closed = torch.where(z[span] == 0, gates.probs[span], -1.0)
    reopened = span.start + closed.topk(missing).indices
    z[reopened] = torch.where(values == 0, tiny, values)[reopened]


def close_dead_units(layout: Layout, z: Tensor) -> Tensor:
    """Close every unit that no open weight reads, until nothing changes.

    A unit that a norm counts is never dead: the other units depend on it. Neither is a branch, nor
    an expert.

    A filter whose flattened inputs are all closed is closed, and so are the flattened inputs of a
    closed filter. This is exact, because nothing reads what a dead unit sends.
    """
    while True:
        draw = Draw(layout, z)
        alive = np.zeros(layout.gates + 1, dtype=np.bool_)
        for spec in layout.tensors.values():
            _mark_read(alive, spec, draw)
        for number, group in enumerate(layout.groups):
            alive[layout.span(number)] |= bool(
                group.closes_makers or group.branches or group.routes
            )
        living = torch.where(torch.from_numpy(alive[:-1]).to(z.device), z, torch.zeros_like(z))
        if torch.equal(living, z):
            return z
        z = living


def _mark_read(alive: Mask, spec: TensorCut, draw: Draw) -> None:
    """Mark the gates whose positions are read in this tensor by an open weight."""
    for dim, axis in spec.axes.items():
        others = [other for at, other in spec.axes.items() if at != dim]
        if all(bool(draw.open_positions(other).any()) for other in others):
            positions = draw.open_positions(axis)
            for reach in axis.reaches:
                if reach.reads:
                    alive[reach.numbers[positions]] = True
    for group in spec.elementwise:
        alive[draw.layout.span(group)] = True
