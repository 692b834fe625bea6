"""Recurrent layers: a hidden unit is a row of every gate, and a column of what reads the state.

All layers and directions of one module have one hidden size, so unit j of all of them goes
together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from l0arm.planning.atoms import Array
from l0arm.planning.rules.base import INPUT, NotCovered, Site, rule, spaces_in
from l0arm.planning.space import Factor, Space, labels, mixed

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}  # rows of a weight per unit


@rule(*(f"aten.{name}.input" for name in GATES))
def layers(
    site: Site,
    x: Space,
    state: Any,
    parameters: list[Space],
    has_biases: bool,
    count: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Space, ...]:
    """Whole sequences. The results are the outputs, and the last state of every layer."""
    each, directions = 4 if has_biases else 2, 2 if bidirectional else 1
    if len(parameters) != each * count * directions:
        raise NotCovered("recurrent layers without a projection")
    x = mixed(site.atoms, x, set(range(len(x.shape) - 1)), site.mixes())
    read, units = labels(x, len(x.shape) - 1), None
    site.record_count(read, "input_size")
    steps = math.prod(x.shape[:-1])
    for layer in range(count):
        for direction in range(directions):
            start = each * (layer * directions + direction)
            own = parameters[start : start + each]
            made = _cell(site, read, own, GATES[site.op], steps)
            units = made if units is None else units
            site.atoms.unite(made, units, f"{site.where} has one hidden size")
        assert units is not None
        read = np.tile(units, directions)
    assert units is not None
    _meet(site, state, units)
    rank = len(site.shapes[0]) - 1
    last = tuple(_labelled(site, shape, units) for shape in site.shapes[1:])
    return (Space(site.shapes[0], (Factor((rank,), read),), fixed=site.mixes()), *last)


@rule(*(f"aten.{name}_cell" for name in GATES))
def cell(site: Site, x: Space, state: Any, *parameters: Space) -> tuple[Space, ...] | Space:
    """One step."""
    x = mixed(site.atoms, x, set(range(len(x.shape) - 1)), site.mixes())
    read = labels(x, len(x.shape) - 1)
    site.record_count(read, "input_size")
    gates = GATES[site.op.removesuffix("_cell")]
    units = _cell(site, read, [p for p in parameters if p is not None], gates, len(x.shape[:-1]))
    _meet(site, state, units)
    results = tuple(_labelled(site, shape, units) for shape in site.shapes)
    return results if len(results) > 1 else results[0]


def _cell(site: Site, read: Array, parameters: Sequence[Space], gates: int, steps: int) -> Array:
    """Unite what belongs to each hidden unit of one layer, and return the units."""
    by_input, by_state, *biases = parameters
    rows = [labels(p, 0).reshape(gates, -1) for p in (by_input, by_state, *biases)]
    units: Array = rows[0][0]
    for each in rows:
        site.atoms.unite(each, units, f"{site.where} needs all gates of a unit")
    inputs, states = labels(by_input, 1), labels(by_state, 1)
    site.atoms.unite(states, units, site.mixes())
    site.atoms.unite(inputs, read, f"{site.where} reads what is never cut")
    for columns in (inputs, states):
        site.atoms.mark_read(columns)
        site.record_work(steps * rows[0].size * len(columns), [units, columns])
    site.record_count(units, "hidden_size")
    return units


def _meet(site: Site, state: Any, units: Array) -> None:
    """The state at the start has the same units. That which the module makes itself has none."""
    for given in spaces_in(state):
        factor = given.at(len(given.shape) - 1)
        if factor is not None:
            known = mixed(site.atoms, given, set(range(len(given.shape) - 1)), site.mixes())
            site.atoms.unite(labels(known, len(given.shape) - 1), units, site.mixes())
        elif given.fixed == INPUT:
            site.atoms.pin(units, f"{site.where} starts from a state that is never cut ({INPUT})")


def _labelled(site: Site, shape: tuple[int, ...], units: Array) -> Space:
    return Space(shape, (Factor((len(shape) - 1,), units),), fixed=site.mixes())
