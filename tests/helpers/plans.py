"""Small models and readers of plans for the planner's tests."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from l0arm.planning import Plan, PlanError, Skipped, plan

Network = Callable[[str], tuple[nn.Module, tuple[Any, ...]]]  # a network and inputs, by name


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.a(x))
        return {"logits": self.b(hidden), "hidden": hidden}


def reasons(found: Plan) -> dict[str, str]:
    """Why layers are skipped, by name."""
    return {entry.layer: entry.reason for entry in found.skipped}


def plan_or_reasons(model: nn.Module, x: Tensor) -> Plan:
    """The plan, or the skipped layers that its error lists as a plan without groups."""
    try:
        return plan(model, x)
    except PlanError as error:
        lines = [line.strip().split(": ", 1) for line in str(error).splitlines()[1:]]
        return Plan((), tuple(Skipped(layer, reason) for layer, reason in lines))
