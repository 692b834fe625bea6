"""z-bar (Eq. 14): which units of a gated model stay, decided for each group."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from l0arm.contracts import Gates
from l0arm.gates.threshold import valley
from l0arm.gating.group import Group
from l0arm.gating.layout import Layout

Threshold = float | Literal["valley"]


def deterministic_mask(layout: Layout, gates: Gates, threshold: Threshold, multiple: int) -> Tensor:
    """z-bar of all gates; widths that kernels like are multiples of ``multiple``.

    Tied weights that a group both makes and reads would fold a fraction twice: there, 0 or 1.
    """
    z = gates.deterministic(_tau(layout, gates.probs, threshold))
    for number, group in enumerate(layout.groups):
        missing = _missing(group, int((z[layout.span(number)] != 0).sum()), multiple)
        if missing:
            _reopen(z, layout.span(number), gates, missing)
    for span in map(layout.span, layout.twice):
        z[span] = (z[span] != 0).to(z.dtype)
    return z


def checked_threshold(tau: Threshold) -> Threshold:
    """tau itself, if it can cut probabilities in two."""
    if tau != "valley" and not (isinstance(tau, int | float) and 0.0 < tau < 1.0):
        raise ValueError(
            f"threshold must lie strictly between 0 and 1, or be 'valley'; got {tau!r}"
        )
    return tau


def checked_multiple(multiple: int) -> int:
    """The multiple itself, if widths can have it."""
    if not isinstance(multiple, int) or multiple < 1:
        raise ValueError(f"width_multiple must be an integer >= 1; got {multiple!r}")
    return multiple


def _tau(layout: Layout, pi: Tensor, threshold: Threshold) -> Tensor | float:
    """The threshold of every gate: one number, or the valley of each group's histogram."""
    if threshold != "valley":
        return threshold
    valleys = [valley(pi[layout.span(n)]) for n in range(len(layout.groups))]
    return pi.new_tensor(valleys)[layout.group_of.to(pi.device)]


def _missing(group: Group, is_open: int, multiple: int) -> int:
    """How many units a group lacks to its floor, or to the next multiple."""
    units = group.units_for(multiple)
    rounded = -(-is_open // units) * units
    return max(0, max(group.floor, min(rounded, group.units)) - is_open)


def _reopen(z: Tensor, span: slice, gates: Gates, missing: int) -> None:
    """The likeliest of the closed gates get the value that no threshold would take from them."""
    values, tiny = gates.kept_value(), torch.finfo(z.dtype).tiny
    closed = torch.where(z[span] == 0, gates.probs[span], -1.0)
    reopened = span.start + closed.topk(missing).indices
    z[reopened] = torch.where(values == 0, tiny, values)[reopened]
