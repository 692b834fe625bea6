"""The deterministic network that fits the budget: by a threshold, or gate by gate."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from l0arm.costs.budget import BudgetWarning, Constraint
from l0arm.gating import Gated
from l0arm.gating.draw import Draw
from l0arm.gating.mask import close_dead_units

HELD = (0.1, 0.9)  # P(open) of a gate that the training left closed, and held open
FEW = 0.01  # of the gates: so many may be decided against the training without a word
MISSES = 32  # closed units in a row that do not fit, after which nothing more is opened


def fit_threshold(gated: Gated) -> float:
    """Set ``gated.threshold`` so that the deterministic network fits the budget.

    While gates are undecided, the deterministic network differs from the expected one. Of all
    thresholds that fit, the one that leaves most is taken. What counts is the network that
    compaction leaves: with widths rounded to ``gated.width_multiple``, without dead units, and
    with the stand-ins of empty groups.

    Args:
        gated: A network with a budget.

    Returns:
        The threshold tau (Eq. 14).

    Warns:
        BudgetWarning: Units are closed that the training held open, or the reverse, or the
            target was still falling.

    Raises:
        ValueError: The model has no budget, or no threshold fits it.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 4, 2)), budget="50%")
        >>> _ = torch.nn.init.uniform_(gated.phi, -0.3, 0.3)
        >>> tau = fit_threshold(gated)
        >>> sum(p.numel() for p in gated.compact().parameters()) <= 0.5 * 38
        True
    """
    budget = _budget_of(gated)

    def fits(tau: float) -> bool:
        gated.threshold = tau
        return budget.fits(as_cut(gated, gated.deterministic()))

    pi = gated.gates.open_probability.detach()
    before, candidates = gated.threshold, _thresholds(pi)
    low, high = 0, len(candidates) - 1
    while low < high:  # the cost falls as tau rises
        middle = (low + high) // 2
        low, high = (low, middle) if fits(candidates[middle]) else (middle + 1, high)
    if not fits(candidates[low]):
        gated.threshold = before
        raise ValueError(
            f"no threshold makes the network fit the budget, {budget.extra_repr()}: gates that "
            "are certainly open, or that close by themselves (l0-hc), do not depend on it, and "
            "floors keep units open; l0arm.pruning.decide needs no threshold, or train longer, or "
            "with a higher gate_lr"
        )
    tau = candidates[low]
    _warn_if_undecided(gated, pi > tau, stacklevel=3)
    return tau


def fitted_mask(gated: Gated, *, stacklevel: int = 2) -> Tensor:
    """Gates, 0 or 1, of the largest network that fits the budget, most probable units first.

    Units are kept by rank, as many as fit. Then closed units are opened again, as long as the
    budget allows it: what is left of the budget may be enough for a cheaper unit. Unlike a
    threshold, this separates gates that are equally open. Each group keeps a unit. Widths are
    multiples of ``gated.width_multiple``. Dead units are closed.

    Args:
        gated: A network with a budget. It is not changed.
        stacklevel: Of the warnings, as for ``warnings.warn``.

    Returns:
        The gates.

    Warns:
        BudgetWarning: As for ``fit_threshold``.

    Raises:
        ValueError: The model has no budget, or the floors of the groups do not fit it.
    """
    budget = _budget_of(gated)
    phi = gated.phi.detach()
    rank = phi if phi.dim() == 1 else gated.gates.open_probability.detach()
    place = torch.cat([torch.arange(group.units) / group.units for group in gated.groups])
    by_place = place.to(rank.device).argsort()  # equal gates: from all groups in turn
    order = by_place[rank[by_place].argsort(descending=True, stable=True)]

    def best(count: int) -> Tensor:
        z = torch.zeros_like(rank)
        z[order[:count]] = 1.0
        return _widened(gated, z, rank)

    low, high = 0, len(order)
    while low < high:  # the largest count that fits
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if budget.fits(as_cut(gated, best(middle))) else (low, middle - 1)
        )
    z = best(low)
    if not budget.fits(as_cut(gated, z)):
        raise ValueError(
            f"with as few units open as floors and widths allow, the network does not fit the "
            f"budget, {budget.extra_repr()}; lower the floors or the multiple of the widths"
        )
    kept = torch.zeros_like(z, dtype=torch.bool)
    kept[order[:low]] = True
    _warn_if_undecided(gated, kept, stacklevel=stacklevel + 1)
    misses = 0
    for unit in order[low:].tolist():
        if misses == MISSES:
            break
        if z[unit] == 0:
            wider = z.clone()
            wider[unit] = 1.0
            wider = _widened(gated, wider, rank)
            fits = budget.fits(as_cut(gated, wider))
            z, misses = (wider, 0) if fits else (z, misses + 1)
    return close_dead_units(gated.layout, z)


def as_cut(gated: Gated, z: Tensor) -> Tensor:
    """The units that compaction leaves of z: without dead ones, with stand-ins where need be."""
    left = (close_dead_units(gated.layout, z) != 0).to(z.dtype)
    draw = Draw(gated.layout, left, writes=False)
    for number in draw.short:
        left[gated.layout.span(number)][list(draw.units_left(number))] = 1.0
    return left


def _widened(gated: Gated, z: Tensor, rank: Tensor) -> Tensor:
    """z with units opened, by rank, up to the floors and to widths that are multiples."""
    for number, group in enumerate(gated.groups):
        span = gated.layout.span(number)
        part, units = z[span], group.units_for(gated.width_multiple)
        now = int(part.sum())
        least = max(1, group.floor)  # an empty group would keep a stand-in, which costs the same
        missing = max(least, min(-(-max(now, 1) // units) * units, group.units)) - now
        if missing > 0:
            closed = rank[span].masked_fill(part > 0, float("-inf"))
            part[closed.topk(missing).indices] = 1.0
    return z


def _budget_of(gated: Gated) -> Constraint:
    if gated.budget is None:
        raise ValueError("the model has no budget; give one to sparsify(..., budget='40%')")
    return gated.budget


def _warn_if_undecided(gated: Gated, kept: Tensor, stacklevel: int) -> None:
    """Warn if the fit decides much against the training. ``kept``: the gates by rank alone."""
    assert gated.budget is not None
    missed = gated.budget.falling()
    if missed:
        warnings.warn(missed, BudgetWarning, stacklevel=stacklevel)
        return
    pi = gated.gates.open_probability.detach()
    closed = int(((pi > HELD[1]) & ~kept).sum())
    opened = int(((pi < HELD[0]) & kept).sum())
    if max(closed, opened) > FEW * len(pi):
        what = (
            f"closes {closed} units that the training held open (P(open) above {HELD[1]})"
            if closed >= opened
            else f"opens {opened} units that the training closed (P(open) below {HELD[0]})"
        )
        warnings.warn(
            f"the gates are not decided: fitting the budget, {gated.budget.extra_repr()}, {what}; "
            "train longer, or with a higher gate_lr",
            BudgetWarning,
            stacklevel=stacklevel,
        )


def _thresholds(pi: Tensor) -> list[float]:
    """All thresholds that matter, from one below every gate to one above them, sorted."""
    levels = torch.unique(pi.clamp(1e-6, 1 - 1e-6)).double()
    between = ((levels[1:] + levels[:-1]) / 2).tolist()
    return [float(levels[0]) / 2, *between, float(levels[-1])]
