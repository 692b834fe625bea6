"""What the open share of each layer costs in milliseconds, measured on this machine once.

Copies of the network are compacted at several levels of openness and run in turns;
``metrics/latency_table.py`` fits a line to the times of every layer.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from l0arm.compaction.cutting import cut, plain_copy, select_inputs
from l0arm.compaction.dead import follow_dead
from l0arm.groups import Gated
from l0arm.groups.draw import Draw
from l0arm.groups.example import Example
from l0arm.groups.expectation import expected_share
from l0arm.groups.layout import named_tensors
from l0arm.metrics.latency_file import read_table, table_file, write_table
from l0arm.metrics.latency_key import latency_key
from l0arm.metrics.latency_table import LatencyTable, Shares, fitted
from l0arm.metrics.module_times import module_times, wall_clock
from l0arm.penalties.cost import ExpectedCost

LEVELS = (1.0, 0.75, 0.5, 0.25, 0.0)  # of every group's units; 0: as few as it must keep
MIXED = 2  # networks in which every group has a level of its own
TOLERATED = 0.25
SEED = 0x10A2


class LatencyWarning(UserWarning):
    """The measured times are far from the line that the budget goes by."""


def expected_latency(gated: Gated, example: Example) -> ExpectedCost:
    """E[latency] in milliseconds on the example, exact under the linear model of the table."""
    table = latency_table(gated, example)
    return ExpectedCost(gated, table.prices(), table.constant)


def latency_table(gated: Gated, example: Example) -> LatencyTable:
    """The table of this network on this machine: the one that was kept, or measured now."""
    tensors = timed_layers(gated)
    digest = latency_key(gated, example)
    path = table_file(digest)
    table = read_table(path, digest, tensors)
    if table is None:
        table = measured(gated, example, tensors)
        write_table(path, digest, table)
    _warn_if_bent(table, path)
    return table


def timed_layers(gated: Gated) -> dict[str, str]:
    """The modules with a tensor of their own that gates cut, and the largest such tensor."""
    tensors = named_tensors(gated.model)
    cuts = {id(tensors[name]): name for name, spec in gated.layout.tensors.items() if spec.axes}
    found = {}
    for name, module in gated.model.named_modules():
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        largest = max((t for t in own if id(t) in cuts), key=lambda t: t.numel(), default=None)
        if largest is not None:
            found[name] = cuts[id(largest)]
    return found


def measured(gated: Gated, example: Example, tensors: dict[str, str]) -> LatencyTable:
    """Measure now, on copies: the model, its mode and the random numbers stay as they are."""
    device = gated.phi.device
    dense = plain_copy(gated, share_hooks=False)
    networks, shares = [], []
    for z in _masks(gated):
        alive = follow_dead(gated.layout, z.to(device))
        networks.append(_cut_to(dense, gated, alive))
        shares.append(_open_shares(gated, tensors, alive))
    example = example.each(lambda tensor: tensor.to(device))
    times = module_times(networks, tensors, example, wall_clock(device))
    table = fitted(tensors, shares, times)
    if not table.layers:
        raise ValueError(
            "a budget of latency has nothing to pull at: no module of the model is called that "
            "holds a weight whose rows or columns gates drop (gates on single weights save no "
            "time); use {'params': ...} or {'flops': ...}"
        )
    return table


def _masks(gated: Gated) -> Iterator[Tensor]:
    """Random gates: all groups at each of the levels, then every group at a level of its own."""
    random = torch.Generator().manual_seed(SEED)
    groups = len(gated.groups)
    for level in LEVELS:
        yield _mask(gated, [level] * groups, random)
    for _ in range(MIXED):
        chosen = torch.randint(len(LEVELS), (groups,), generator=random)
        yield _mask(gated, [LEVELS[number] for number in chosen.tolist()], random)


def _mask(gated: Gated, levels: list[float], random: torch.Generator) -> Tensor:
    z = torch.zeros(gated.layout.gates)
    for number, (group, level) in enumerate(zip(gated.groups, levels, strict=True)):
        count = max(1, group.floor, round(level * group.units))
        units = torch.randperm(group.units, generator=random)[:count]
        z[gated.layout.span(number).start + units] = 1.0
    return z


def _cut_to(dense: nn.Module, gated: Gated, z: Tensor) -> nn.Module:
    """The network that compaction makes of z."""
    draw = Draw(gated.layout, z, writes=False)
    small = copy.deepcopy(dense)
    cut(small, gated.layout, draw)
    return select_inputs(small, gated.layout, draw)


def _open_shares(gated: Gated, tensors: dict[str, str], z: Tensor) -> Shares:
    """The open share of every layer's weight, as ExpectedCost counts it."""
    known, specs = named_tensors(gated.model), gated.layout.tensors
    return {
        module: float(
            expected_share(gated.layout, replace(specs[name], elementwise=[]), known[name].shape, z)
        )
        for module, name in tensors.items()
    }


def _warn_if_bent(table: LatencyTable, path: Path) -> None:
    if table.deviation > TOLERATED:
        warnings.warn(
            f"the linear model of the latency is off by up to {100 * table.deviation:.0f} % of "
            "what was measured, so the budget is as inexact; a larger batch in example_inputs or "
            f"a machine with nothing else to do may fit better (delete {path} to measure again)",
            LatencyWarning,
            stacklevel=5,
        )
