"""A linear model of measured times: what each layer takes by how much of it is open.

    time in l = a + b s_l + d i_l + e o_l,    time after l = a' + r o_l,    none negative
    latency = c + sum_l (b s_l + d i_l + (e + r) o_l)

s_l is the open share of the layer's weight, i_l that of the units it reads, o_l of those it makes:
products take time, and so does moving what goes in and out. What runs between one layer and the
next (activations, pooling, additions) works on what the first one gave. Each layer is fitted on its
own; c, which takes the place of all a and a', is fitted to the whole pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean

import numpy as np

from l0arm.costs.module_times import PassTimes


@dataclass(frozen=True)
class Openness:
    """How much of one layer is open."""

    weights: float  # s_l
    read: float  # i_l
    made: float  # o_l


Network = Mapping[str, Openness]  # by module


@dataclass(frozen=True)
class LayerTime:
    """Milliseconds that a layer, and what follows it, take more when all of it is open."""

    tensor: str  # whose open shares count
    weights: float  # b
    read: float  # d
    made: float  # e + r

    def at(self, layer: Openness) -> float:
        return self.weights * layer.weights + self.read * layer.read + self.made * layer.made


@dataclass(frozen=True)
class LatencyTable:
    """The fitted times; ``deviation`` is the largest of a pass, relative to what was measured."""

    layers: Mapping[str, LayerTime]
    constant: float  # c
    dense: float  # as measured
    deviation: float

    def by_tensor(self, part: Callable[[LayerTime], float]) -> dict[str, float]:
        """One part of the times, summed over the layers that share a tensor."""
        prices: dict[str, float] = {}
        for layer in self.layers.values():
            prices[layer.tensor] = prices.get(layer.tensor, 0.0) + part(layer)
        return prices

    def total(self, network: Network) -> float:
        """The latency of a network."""
        return self.constant + sum(t.at(network[name]) for name, t in self.layers.items())


def fitted(
    tensors: Mapping[str, str], networks: Sequence[Network], times: Sequence[PassTimes]
) -> LatencyTable:
    """The table of some networks, the first one dense; ``tensors`` names each module's weight."""
    layers = {
        name: _layer(name, tensor, networks, times)
        for name, tensor in tensors.items()
        if name in times[0].modules
    }
    totals = [t.total for t in times]
    growing = LatencyTable(layers, 0.0, totals[0], 0.0)
    rest = [t - growing.total(n) for t, n in zip(totals, networks, strict=True)]
    table = replace(growing, constant=max(0.0, fmean(rest)))
    return replace(table, deviation=_deviation(table, networks, totals))


def _layer(
    name: str, tensor: str, networks: Sequence[Network], times: Sequence[PassTimes]
) -> LayerTime:
    open_ = [network[name] for network in networks]
    weights, read, made = linear(
        [(o.weights, o.read, o.made) for o in open_], [t.modules.get(name, 0.0) for t in times]
    )
    (after,) = linear([(o.made,) for o in open_], [t.after.get(name, 0.0) for t in times])
    return LayerTime(tensor, weights, read, made + after)


def _deviation(table: LatencyTable, networks: Sequence[Network], totals: Sequence[float]) -> float:
    pairs = zip(networks, totals, strict=True)
    return max(abs(table.total(network) / max(total, 1e-9) - 1.0) for network, total in pairs)


def linear(x: Sequence[Sequence[float]], y: Sequence[float]) -> tuple[float, ...]:
    """The slopes b >= 0 that, with some a >= 0, minimise ``sum (a + b x - y)^2``.

    The best has some of its coefficients at zero and is the least squares solution of the others;
    there are few, so all choices are tried. What does not vary gets no slope.

    >>> [round(b, 9) for b in linear([(0.0,), (1.0,), (2.0,)], [1.0, 3.0, 5.0])]
    [2.0]
    >>> linear([(0.0,), (1.0,), (2.0,)], [5.0, 3.0, 1.0])  # falling: a constant is the best
    (0.0,)
    """
    given, wanted = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    columns = np.column_stack([np.ones(len(wanted)), given])  # a, then b
    varying = [n for n in range(given.shape[1]) if np.ptp(given[:, n]) > 1e-9]
    best, least = np.zeros(columns.shape[1]), float(wanted @ wanted)
    for size in range(1, len(varying) + 2):
        for chosen in combinations([0, *(1 + n for n in varying)], size):
            some = list(chosen)
            solution = np.linalg.lstsq(columns[:, some], wanted, rcond=1e-9)[0]
            off = float(np.sum((columns[:, some] @ solution - wanted) ** 2))
            if solution.min() >= 0.0 and off < least * (1 - 1e-9):
                best, least = np.zeros(columns.shape[1]), off
                best[some] = solution
    return tuple(map(float, best[1:]))
