"""A linear model of the measured times of layers, fitted, and kept in a cache file.

    time in l = a + b s_l + d i_l + e o_l,    time after l = a' + r o_l,    no coefficient negative
    latency = c + sum_l (b s_l + d i_l + (e + r) o_l)

s_l is the open share of the layer's weight, i_l that of the units it reads, o_l of those it makes:
products take time, and so does moving what goes in and out. What runs between one layer and the
next (activations, pooling, additions) works on the output of the first one. Each layer is fitted on
its own. The constant c, which replaces all a and a', is fitted to the whole pass.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from l0arm.costs.timing import PassTimes, processor_name
from l0arm.equality.example import Example
from l0arm.files import default_cache, write_text
from l0arm.gating import Gated
from l0arm.gating.layout import named_tensors

FORMAT = 1
LARGEST = 1 << 24  # bytes; a table of ten thousand layers has a tenth of it


@dataclass(frozen=True)
class Openness:
    """The open shares of one layer."""

    weights: float  # s_l
    read: float  # i_l
    made: float  # o_l


Network = Mapping[str, Openness]  # by module


@dataclass(frozen=True)
class LayerTime:
    """Milliseconds that a fully open layer, and what follows it, take beyond the constant."""

    tensor: str  # its open shares count
    weights: float  # b
    read: float  # d
    made: float  # e + r

    def at(self, layer: Openness) -> float:
        """The time at given open shares."""
        return self.weights * layer.weights + self.read * layer.read + self.made * layer.made


@dataclass(frozen=True)
class LatencyTable:
    """The fitted times of a network's layers, in milliseconds.

    Attributes:
        layers: The times of each layer with gates, by module.
        constant: What a pass takes whatever the gates do.
        dense: A pass of the dense network, as measured.
        deviation: The largest error of the model on a measured pass, relative to its time.

    Example:
        >>> layer = LayerTime("fc.weight", weights=2.0, read=0.5, made=1.0)
        >>> table = LatencyTable({"fc": layer}, constant=1.0, dense=4.6, deviation=0.02)
        >>> table.total({"fc": Openness(weights=0.25, read=0.5, made=0.5)})
        2.25
    """

    layers: Mapping[str, LayerTime]
    constant: float  # c
    dense: float
    deviation: float

    def by_tensor(self, part: Callable[[LayerTime], float]) -> dict[str, float]:
        """One part of the times, summed over the layers that share a tensor."""
        prices: dict[str, float] = {}
        for layer in self.layers.values():
            prices[layer.tensor] = prices.get(layer.tensor, 0.0) + part(layer)
        return prices

    def total(self, network: Network) -> float:
        """The latency of a network with given open shares."""
        return self.constant + sum(t.at(network[name]) for name, t in self.layers.items())


def fitted(
    tensors: Mapping[str, str], networks: Sequence[Network], times: Sequence[PassTimes]
) -> LatencyTable:
    """Fit the table to some networks, the first one dense; ``tensors`` names each layer's weight.

    A module that the pass does not call gets no entry.
    """
    layers = {}
    for name, tensor in tensors.items():
        if name in times[0].modules:
            shares = [network[name] for network in networks]
            inside = [t.modules.get(name, 0.0) for t in times]
            later = [t.after.get(name, 0.0) for t in times]
            weights, read, made = linear([(s.weights, s.read, s.made) for s in shares], inside)
            (after,) = linear([(s.made,) for s in shares], later)
            layers[name] = LayerTime(tensor, weights, read, made + after)
    totals = [t.total for t in times]
    growing = LatencyTable(layers, 0.0, totals[0], 0.0)
    rest = [total - growing.total(n) for total, n in zip(totals, networks, strict=True)]
    table = replace(growing, constant=max(0.0, fmean(rest)))
    errors = [
        abs(table.total(n) / max(total, 1e-9) - 1.0)
        for n, total in zip(networks, totals, strict=True)
    ]
    return replace(table, deviation=max(errors))


def linear(x: Sequence[Sequence[float]], y: Sequence[float]) -> tuple[float, ...]:
    """The slopes b >= 0 that, with some a >= 0, minimise ``sum (a + b x - y)^2``.

    The optimum has some coefficients at zero and is the least squares solution in the others. There
    are few, so all subsets are tried. A column that does not vary gets no slope.

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
        for subset in combinations([0, *(1 + n for n in varying)], size):
            some = list(subset)
            solution = np.linalg.lstsq(columns[:, some], wanted, rcond=1e-9)[0]
            error = float(np.sum((columns[:, some] @ solution - wanted) ** 2))
            if solution.min() >= 0.0 and error < least * (1 - 1e-9):
                best, least = np.zeros(columns.shape[1]), error
                best[some] = solution
    return tuple(map(float, best[1:]))


def table_file(digest: str, cache: Path | None = None) -> Path:
    """Where the table of a network and machine is kept."""
    return (cache or default_cache()) / "latency" / f"{digest}.json"


def write_table(path: Path, digest: str, table: LatencyTable) -> None:
    """Write a table atomically; without permission to write, do nothing."""
    text = json.dumps(
        {"format": FORMAT, "digest": digest, **asdict(table)}, indent=1, allow_nan=False
    )
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text + "\n")


def read_table(path: Path, digest: str, tensors: Mapping[str, str]) -> LatencyTable | None:
    """Read a kept table; None if there is none, or it is damaged or of other layers."""
    try:
        if path.stat().st_size > LARGEST:
            return None
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != FORMAT or record["digest"] != digest:
            return None
        layers = {
            str(name): LayerTime(layer["tensor"], *_times(layer, "weights", "read", "made"))
            for name, layer in dict(record["layers"]).items()
        }
        if not layers or any(tensors.get(name) != layer.tensor for name, layer in layers.items()):
            return None
        table = LatencyTable(layers, *_times(record, "constant", "dense", "deviation"))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return table if table.dense > 0.0 else None


def _times(record: Any, *keys: str) -> tuple[float, ...]:
    """Numbers that a measurement can give: finite and not negative."""
    values = [record[key] for key in keys]
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        raise TypeError("not numbers")
    if any(not math.isfinite(v) or v < 0 for v in values):
        raise ValueError("not times")
    return tuple(float(v) for v in values)


def latency_key(gated: Gated, example: Example) -> str:
    """SHA-256 of all that the times depend on: machine, network, gates and inputs."""
    facts = {
        "machine": _machine(gated.phi.device),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "modules": repr(gated.model),  # with strides and paddings
        "code": sorted({_code(type(module)) for module in gated.model.modules()}),
        "tensors": {name: _form(t) for name, t in named_tensors(gated.model).items()},
        # the initial probability of a gate does not matter
        "groups": [repr(replace(group, initial=0.5)) for group in gated.groups],
        "inputs": [_form(leaf) for leaf in pytree.tree_leaves((example.args, example.kwargs))],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _machine(device: torch.device) -> list[str]:
    """The processor, and the device if it is another one."""
    names = [platform.machine(), processor_name(), torch.backends.cpu.get_cpu_capability()]
    if device.type == "cpu":
        return names
    name = getattr(torch.get_device_module(device), "get_device_name", str)
    return [*names, device.type, name(device)]


def _form(value: Any) -> str:
    """A tensor's shape, memory layout and dtype, without its values; the type of anything else."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    strides = value.stride() if value.layout == torch.strided else value.layout
    return f"{tuple(value.shape)} {strides} {value.dtype}"


def _code(kind: type[nn.Module]) -> str:
    """The class of a module and the bytecode of its forward, so that an edit changes the key."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    code = getattr(kind.forward, "__code__", None)
    if code is None:
        return name
    plain = [c for c in code.co_consts if isinstance(c, str | int | float | None)]
    return f"{name} {code.co_code.hex()} {code.co_names} {plain}"
