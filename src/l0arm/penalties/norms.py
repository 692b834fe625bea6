"""Expected norms of theta under the gates: what being open costs (Eq. 5, 15-18).

Each is a sum over groups of P(open) times a number that the weights |g| of the unit give:
how many they are (L0), their absolute values (L1), their squares (L2).
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
    """``lam * sum_g |g| g(phi_g)``, Eq. 5 and Eq. 17."""

    lam: Strength

    def __post_init__(self) -> None:
        checked(self.lam)

    def __call__(self, gated: Gated, gates: Gates) -> Tensor:
        probs = gates.open_probability
        return torch.dot((gated.sizes * per_gate(self.lam, gated)).to(probs.dtype), probs)


@dataclass(frozen=True)
class L1:
    """``lam * sum_j g(phi_j) |theta~_j|``, Eq. 15."""

    lam: Strength

    def __post_init__(self) -> None:
        checked(self.lam)

    def __call__(self, gated: Gated, gates: Gates) -> Tensor:
        return _expected_norm(gated, gates, self.lam, torch.abs)


@dataclass(frozen=True)
class L2:
    """``lam * sum_g g(phi_g) sum_j theta~_j^2``, Eq. 16 and Eq. 18."""

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
    """Sum the values of each unit's slice."""
    if piece.dim is None:
        return values.flatten()
    rows = values.movedim(piece.dim, 0).reshape(values.shape[piece.dim], -1).sum(1)
    if piece.index is None:
        return rows.view(units, piece.block).sum(1)
    unit = [number for number, positions in enumerate(piece.index) for _ in positions]
    chosen = rows[[position for positions in piece.index for position in positions]]
    return rows.new_zeros(units).index_add(0, torch.tensor(unit, device=rows.device), chosen)
