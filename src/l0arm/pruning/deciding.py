"""Decide the gates: open or closed for good, so that the network just fits its budget."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from l0arm.costs.budget import BudgetWarning, fit_threshold
from l0arm.gating import Gated
from l0arm.gating.mask import close_dead_units
from l0arm.methods._l0_best import saturating_phi

CERTAIN = (0.1, 0.9)  # a threshold outside closes units that the training held open, or the reverse
MISSES = 32  # closed units in a row that do not fit, after which nothing more is opened


def decide(gated: Gated) -> Tensor:
    """Open or close every gate for good, so that the network just fits its budget.

    Units are kept by their probability of being open. First a threshold is fitted to the budget.
    Then closed units are opened again, the most probable first, as long as the budget allows it.
    Units that no longer reach the output, or are not reached, are closed. ``phi`` is written: the
    gates are then exactly 0 or 1.

    Args:
        gated: A gated network with a budget.

    Returns:
        The gates, 0 or 1.

    Warns:
        BudgetWarning: If the threshold lies outside of (0.1, 0.9): the training has not decided.

    Raises:
        ValueError: If there is no budget, or nothing fits it.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 20, 3)), budget="50%")
        >>> _ = torch.nn.init.uniform_(gated.phi, -0.3, 0.3)
        >>> z = decide(gated)
        >>> float(gated.budget.cost(z.double()) / gated.budget.cost.dense) <= 0.5
        True
    """
    sure = saturating_phi(gated)
    before = gated.threshold
    tau = fit_threshold(gated)
    low, high = CERTAIN
    if not low <= tau <= high:
        warnings.warn(
            f"the gates are not decided: the budget needs the threshold {tau:.3f}, which "
            + (
                "closes units that the training held open"
                if tau > high
                else "opens units that the training closed"
            )
            + "; train longer, or with a higher gate_lr",
            BudgetWarning,
            stacklevel=2,
        )
    z = (gated.deterministic() != 0).to(gated.phi.dtype)
    budget, multiple = gated.budget, gated.width_multiple
    assert budget is not None  # fit_threshold refuses
    if multiple == 1:  # else every opened unit would break the widths
        probability = gated.gates.open_probability.detach().masked_fill(z > 0, -1.0)
        misses = 0
        for unit in probability.argsort(descending=True).tolist():
            if misses == MISSES or z[unit] > 0:
                break
            z[unit] = 1.0
            if not budget.fits(z):
                z[unit], misses = 0.0, misses + 1
    z = close_dead_units(gated.layout, z)
    with torch.no_grad():
        gated.phi.copy_(torch.where(z > 0, sure, -sure))
    gated.threshold = before
    return z
