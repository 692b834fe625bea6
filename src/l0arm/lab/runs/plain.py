"""A network without gates, seen by the loop like one that has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from l0arm.gating import Loss, NonFiniteLoss


class Plain(nn.Module):
    """The dense network: its loss is the data loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)

    def loss(self, closure: Callable[[], Tensor], generator: torch.Generator | None = None) -> Loss:
        """The data loss alone; not finite raises, as with gates."""
        data = closure()
        if not math.isfinite(data.item()):
            raise NonFiniteLoss("data loss", data.item())
        return Loss(data, data, data.new_zeros(()))

    def parameter_groups(
        self, lr: float = 1e-3, gate_lr: float | None = None, **weights: Any
    ) -> list[dict[str, Any]]:
        """For an optimizer: the weights; there is no phi."""
        return [{"params": list(self.parameters()), "lr": lr, **weights}]
