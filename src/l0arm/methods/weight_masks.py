"""Masks on single weights: what is masked stays exactly 0, and so do its averages of gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from l0arm.gating import Gated
from l0arm.gating.layout import named_tensors
from l0arm.methods.naming import key_of


class WeightMasks(nn.Module):
    """One mask of 0 and 1 for every weight that a group counts, saved with the gated network."""

    def __init__(self, gated: Gated) -> None:
        super().__init__()
        self.names = counted_weights(gated)
        for name in self.names:
            self.register_buffer(key_of(name), torch.ones_like(named_tensors(gated.model)[name]))

    def __getitem__(self, name: str) -> Tensor:
        return self.get_buffer(key_of(name))

    def enforce(self, gated: Gated, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Zero what is masked: the weights and, given an optimizer, its averages."""
        tensors = named_tensors(gated.model)
        with torch.no_grad():
            for name in self.names:
                weight, mask = tensors[name], self[name]
                weight.mul_(mask)
                state = {} if optimizer is None else optimizer.state.get(weight, {})
                for value in state.values():
                    if isinstance(value, Tensor) and value.shape == mask.shape:
                        value.mul_(mask)


def counted_weights(gated: Gated) -> list[str]:
    """The weights that groups count, in the order of the groups."""
    return list(dict.fromkeys(piece.tensor for g in gated.groups for piece in g.counts))
