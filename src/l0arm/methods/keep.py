"""Shares to keep: one number, or one per group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from l0arm.gating import Gated
from l0arm.penalties.strength import Strength, checked, per_group


def checked_keep(keep: Strength) -> Strength:
    """``keep`` itself, if every share lies in (0, 1]."""
    checked(keep, "keep")
    if isinstance(keep, Mapping):
        keep_of: Sequence[float] = list(keep.values())
    else:
        keep_of = keep if isinstance(keep, Sequence) else [keep]
    for share in keep_of:
        if not 0 < share <= 1:
            raise ValueError(f"keep is a share in (0, 1], or one per group; got {share!r}")
    return keep


def shares(keep: Strength, gated: Gated) -> list[float]:
    """The share of each group, in order."""
    return per_group(keep, gated.groups, "keep")


@dataclass(frozen=True)
class OnePerGroup:
    """Refuses numbers that do not fit the groups of a model, before it is trained."""

    numbers: Strength
    what: str = "keep"

    def __call__(self, gated: Gated) -> None:
        per_group(self.numbers, gated.groups, self.what)


def largest(values: Tensor, share: float) -> Tensor:
    """1 for the largest entries, as many as the share says and at least one; 0 for the others.

    >>> largest(torch.tensor([3.0, 1.0, 2.0, 0.5]), 0.5)
    tensor([1., 0., 1., 0.])
    """
    count = max(1, round(share * values.numel()))
    mask = torch.zeros(values.numel(), dtype=values.dtype, device=values.device)
    mask[values.flatten().topk(count).indices] = 1.0
    return mask.view_as(values)
