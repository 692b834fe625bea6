"""Expected norms of theta under the gates (Eq. 5, 15-18).

Each is a sum over units of P(open) times the number of the unit's weights (L0), the sum of their
absolute values (L1) or of their squares (L2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.contracts import Gates
from l0arm.gating import Gated, Slice
from l0arm.gating.layout import named_tensors
from l0arm.penalties.strength import Strength, checked, per_gate, per_group


@dataclass(frozen=True)
class L0:
    """The expected L0 norm ``lam * sum_g |g| g(phi_g)``, Eq. 5 and Eq. 17.

    Args:
        lam: The strength lambda: one number, one per group in order, or a mapping from the names of
            the groups.

    Raises:
        ValueError: A strength is negative or not finite.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 4, 2)), lam=0.0)
        >>> _ = gated.phi.data.fill_(0.0)  # every gate is open with probability 1/2
        >>> L0(0.5)(gated, gated.gates).item()  # of 32 weights
        8.0
    """

    lam: Strength

    def __post_init__(self) -> None:
        checked(self.lam)

    def __call__(self, gated: Gated, gates: Gates) -> Tensor:
        probs = gates.open_probability
        strength = gated.constant(self, lambda: gated.sizes * per_gate(self.lam, gated))
        alike = strength.dtype == probs.dtype
        return torch.dot(strength if alike else strength.to(probs.dtype), probs)


@dataclass(frozen=True)
class L1:
    """The expected L1 norm ``lam * sum_j g(phi_j) |theta~_j|``, Eq. 15.

    Args:
        lam: The strength lambda: one number, one per group in order, or a mapping from the names of
            the groups.

    Raises:
        ValueError: A strength is negative or not finite.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 4, 2)), lam=0.0)
        >>> _ = gated.phi.data.fill_(0.0)  # every gate is open with probability 1/2
        >>> for layer in (gated.model.fc1, gated.model.fc2):
        ...     _ = layer.weight.data.fill_(-3.0)
        >>> L1(0.5)(gated, gated.gates).item()  # of 32 weights
        24.0
    """

    lam: Strength

    def __post_init__(self) -> None:
        checked(self.lam)

    def __call__(self, gated: Gated, gates: Gates) -> Tensor:
        return _expected_norm(gated, gates, self.lam, torch.abs)


@dataclass(frozen=True)
class L2:
    """The expected squared L2 norm ``lam * sum_g g(phi_g) sum_j theta~_j^2``, Eq. 16 and Eq. 18.

    Args:
        lam: The strength lambda: one number, one per group in order, or a mapping from the names of
            the groups.

    Raises:
        ValueError: A strength is negative or not finite.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 4, 2)), lam=0.0)
        >>> _ = gated.phi.data.fill_(0.0)  # every gate is open with probability 1/2
        >>> for layer in (gated.model.fc1, gated.model.fc2):
        ...     _ = layer.weight.data.fill_(-3.0)
        >>> L2(0.5)(gated, gated.gates).item()  # of 32 weights
        72.0
    """

    lam: Strength

    def __post_init__(self) -> None:
        checked(self.lam)

    def __call__(self, gated: Gated, gates: Gates) -> Tensor:
        return _expected_norm(gated, gates, self.lam, torch.square)


def _expected_norm(
    gated: Gated, gates: Gates, lam: Strength, of: Callable[[Tensor], Tensor]
) -> Tensor:
    """sum over units of lambda P(open) sum_j of(theta~_j) (Eq. 15, 16, 18)."""
    tensors = named_tensors(gated.model)
    total = gated.phi.new_zeros(())
    open_probability = gated.per_group(gates.open_probability)
    for strength, group in zip(per_group(lam, gated.groups), gated.groups, strict=True):
        for piece in group.counts:
            norms = per_unit(of(tensors[piece.tensor]), piece, group.units)
            total = total + strength * (open_probability[group.name] * norms).sum()
    return total


def per_unit(values: Tensor, piece: Slice, units: int) -> Tensor:
    """Sum a tensor's values over the slice of each unit."""
    if piece.dim is None:
        return values.flatten()
    rows = values.movedim(piece.dim, 0).reshape(values.shape[piece.dim], -1).sum(1)
    if piece.index is None:
        return rows.view(units, piece.block).sum(1)
    unit = [number for number, positions in enumerate(piece.index) for _ in positions]
    chosen = rows[[position for positions in piece.index for position in positions]]
    return rows.new_zeros(units).index_add(0, torch.tensor(unit, device=rows.device), chosen)
