"""Decide the gates: open or closed for good, so that the network just fits its budget."""

from __future__ import annotations

import torch
from torch import Tensor

from l0arm.costs.fitting import fitted_mask
from l0arm.gating import Gated
from l0arm.methods._l0_best import saturating_phi


def decide(gated: Gated) -> Tensor:
    """Open or close every gate for good, so that the network just fits its budget.

    Units are kept by their probability of being open, as many as fit. What is then left of the
    budget goes to further units, the most probable first. Units that no longer reach the output,
    or are not reached, are closed. Widths are multiples of ``gated.width_multiple``. ``phi`` is
    written: the gates are then exactly 0 or 1.

    Args:
        gated: A gated network with a budget.

    Returns:
        The gates, 0 or 1.

    Warns:
        BudgetWarning: If units are closed that the training held open, or the reverse, or the
            target of the budget was still falling.

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
    z = fitted_mask(gated, stacklevel=3)
    with torch.no_grad():
        gated.phi.copy_(torch.where(z > 0, sure, -sure))
    return z
