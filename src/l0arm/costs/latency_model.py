"""Expected latency of a gated network, from a linear model measured once on this machine.

Copies of the network are compacted at several widths and timed in turns. ``layer_times.py`` fits a
linear model to the times of every layer and keeps it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from l0arm.costs.expectation import ExpectedCost, expected_share, units_made, units_read
from l0arm.costs.layer_times import (
    LatencyTable,
    Network,
    Openness,
    fitted,
    latency_key,
    read_table,
    table_file,
    write_table,
)
from l0arm.costs.timing import module_times, wall_clock
from l0arm.equality.example import Example
from l0arm.gating import Gated
from l0arm.gating.cutting import cut, plain_copy, select_inputs
from l0arm.gating.draw import Draw
from l0arm.gating.layout import TensorCut, named_tensors
from l0arm.gating.mask import close_dead_units

MIXED = 8  # networks between the dense one and the smallest
TOLERATED = 0.25
SEED = 0x10A2


class LatencyWarning(UserWarning):
    """The measured times deviate much from the linear model that a latency budget uses."""


def latency_cost(gated: Gated, example: Example) -> ExpectedCost:
    """E[latency] in milliseconds on the example, exact under the linear model of the table."""
    table = latency_table(gated, example)
    cost = ExpectedCost(
        gated,
        table.by_tensor(lambda layer: layer.weights),
        table.constant,
        made=table.by_tensor(lambda layer: layer.made),
        read=table.by_tensor(lambda layer: layer.read),
    )
    cost.dense = table.dense  # shares refer to the measured time, not to that of the model
    return cost


def latency_table(gated: Gated, example: Example) -> LatencyTable:
    """Return the layer times of this network on this machine, from the cache or measured now.

    The cache is ``~/.cache/l0arm/latency``, or below ``$XDG_CACHE_HOME`` if that is set. A
    measurement takes seconds. It leaves the model, its mode and the random numbers unchanged.

    Args:
        gated: The gated network.
        example: The inputs whose latency counts, such as ``gated.example``.

    Returns:
        The table of fitted times.

    Raises:
        ValueError: The model calls no layer whose size depends on the gates.

    Example:
        >>> table = latency_table(gated, gated.example)  # doctest: +SKIP
        >>> table.dense  # doctest: +SKIP
        1.27
    """
    tensors = timed_layers(gated)
    digest = latency_key(gated, example)
    path = table_file(digest)
    table = read_table(path, digest, tensors)
    if table is None:
        table = measured(gated, example, tensors)
        if table.deviation <= TOLERATED:
            write_table(path, digest, table)
        else:
            warnings.warn(
                f"the linear model of the latency is off by up to {100 * table.deviation:.0f} % of "
                "what was measured, so the budget is as inexact; a larger batch in example_inputs "
                "or a machine with nothing else to do may fit better. These times are not kept: "
                "the next call measures again",
                LatencyWarning,
                stacklevel=6,  # the caller of sparsify
            )
    return table


def timed_layers(gated: Gated) -> dict[str, str]:
    """The modules that own a tensor cut by gates, each with the largest such tensor."""
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
        alive = close_dead_units(gated.layout, z.to(device))
        networks.append(_cut_to(dense, gated, alive))
        shares.append(_open_shares(gated, tensors, alive.double()))  # the fit needs exact shares
    example = example.map(lambda tensor: tensor.to(device))
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
    """Random gates: all open, then as few as possible, then every group at a level of its own.

    Over the networks each group goes through all levels in its own order, so that the units a layer
    reads and those it makes vary independently. Widths are as odd as training leaves them.
    """
    random = torch.Generator().manual_seed(SEED)
    groups = len(gated.groups)
    yield _mask(gated, [1.0] * groups, random)
    yield _mask(gated, [0.0] * groups, random)
    strata = torch.stack([torch.randperm(MIXED, generator=random) for _ in range(groups)], 1)
    levels = (strata + torch.rand(strata.shape, generator=random)) / MIXED
    for network in levels.tolist():
        yield _mask(gated, network, random)


def _mask(gated: Gated, levels: Sequence[float], random: torch.Generator) -> Tensor:
    """Random gates with a given open share in each group."""
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


def _open_shares(gated: Gated, tensors: dict[str, str], z: Tensor) -> Network:
    """The open shares of every layer, as ExpectedCost counts them."""
    known, specs = named_tensors(gated.model), gated.layout.tensors

    def share(spec: TensorCut) -> float:
        return float(expected_share(gated.layout, spec, known[spec.name].shape, z))

    cuts = {module: specs[name] for module, name in tensors.items()}
    return {
        module: Openness(
            weights=share(replace(spec, elementwise=[])),
            read=share(units_read(spec)),
            made=share(units_made(spec)),
        )
        for module, spec in cuts.items()
    }
