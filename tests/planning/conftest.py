"""Fixtures of the planner's tests."""

import copy
from collections.abc import Callable

import pytest
import torch
from tests.helpers.planned_networks import Made, planned_network
from torch import Tensor, nn

from l0arm import Plan, plan

PLANS: dict[str, Plan] = {}  # by network, for all tests: a plan depends on shapes alone


@pytest.fixture
def network() -> Callable[[str], Made]:
    """A network by name, in float64, with weights and statistics away from their start."""
    return planned_network


@pytest.fixture
def planned() -> Callable[[str], Plan]:
    """The plan of a network by name, made once for all tests."""

    def make(name: str) -> Plan:
        if name not in PLANS:
            PLANS[name] = plan(*planned_network(name))
        return PLANS[name]

    return make


@pytest.fixture
def zeroed() -> Callable[[nn.Module, Plan, Tensor], nn.Module]:
    """An oracle without the engine: a copy with 0 wherever weights read closed units."""

    def make(model: nn.Module, plan: Plan, z: Tensor) -> nn.Module:
        twin = copy.deepcopy(model)
        known = dict(twin.named_parameters(remove_duplicate=False))
        parts = torch.split(z, [group.units for group in plan.groups])
        for group, gates in zip(plan.groups, parts, strict=True):
            for piece in group.reads:
                tensor = known[piece.tensor].data
                positions = piece.positions(group.units, tensor.shape[piece.dim])
                for unit in (gates == 0).nonzero().flatten().tolist():
                    tensor.index_fill_(piece.dim, torch.tensor(positions[unit]), 0.0)
        return twin

    return make
