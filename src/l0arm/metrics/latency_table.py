"""A linear model of measured times: what each layer takes by the share of it that is open.

    t_l = a_l + b_l s_l,    latency = c + m sum_l b_l s_l,    a_l, b_l, c, m >= 0

s_l is the open share of the layer's weight. The first line is fitted to the layers one by one, the
second to the whole pass. m is 1 if nothing but the gated layers gets faster; what runs between
them (activations, pooling, additions) is taken to shrink along with them, and makes it larger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from l0arm.metrics.module_times import PassTimes

Shares = Mapping[str, float]  # module -> open share of its weight


@dataclass(frozen=True)
class LayerTime:
    """Milliseconds of one layer: what it always takes, and what it takes more when all is open."""

    tensor: str  # whose open share counts
    always: float  # a_l
    when_open: float  # b_l


@dataclass(frozen=True)
class LatencyTable:
    """The fitted times; ``deviation`` is the largest of a pass, relative to what was measured."""

    layers: Mapping[str, LayerTime]
    constant: float  # c
    scale: float  # m
    deviation: float

    def prices(self) -> dict[str, float]:
        """Milliseconds by tensor: what the pass takes more when all of it is open."""
        prices: dict[str, float] = {}
        for layer in self.layers.values():
            more = self.scale * layer.when_open
            prices[layer.tensor] = prices.get(layer.tensor, 0.0) + more
        return prices

    def total(self, shares: Shares) -> float:
        """The latency of a network whose layers are open by these shares."""
        return self.constant + self.scale * _explained(self.layers, shares)


def fitted(
    tensors: Mapping[str, str], shares: Sequence[Shares], times: Sequence[PassTimes]
) -> LatencyTable:
    """The table of networks with given open shares; ``tensors`` names the weight of each module."""
    layers = {
        name: LayerTime(
            tensor, *line([s[name] for s in shares], [t.modules.get(name, 0.0) for t in times])
        )
        for name, tensor in tensors.items()
        if name in times[0].modules
    }
    totals = [t.total for t in times]
    # A millisecond too much matters more in a small network: relative deviations are fitted.
    weights = [1.0 / max(total, 1e-9) ** 2 for total in totals]
    constant, scale = line([_explained(layers, s) for s in shares], totals, weights)
    table = LatencyTable(layers, constant, scale, 0.0)
    deviations = [
        abs(table.total(s) - total) / max(total, 1e-9)
        for s, total in zip(shares, totals, strict=True)
    ]
    return LatencyTable(layers, constant, scale, max(deviations))


def _explained(layers: Mapping[str, LayerTime], shares: Shares) -> float:
    return sum(layer.when_open * shares[name] for name, layer in layers.items())


def line(
    x: Sequence[float], y: Sequence[float], weights: Sequence[float] | None = None
) -> tuple[float, float]:
    """a, b >= 0 that minimise ``sum w (a + b x - y)^2`` for x, y >= 0.

    >>> line([0.0, 1.0, 2.0], [1.0, 3.0, 5.0])
    (1.0, 2.0)
    >>> line([0.0, 1.0, 2.0], [5.0, 3.0, 1.0])  # falling: a constant is the best that is allowed
    (3.0, 0.0)
    """
    w = [1.0] * len(x) if weights is None else weights
    points = list(zip(w, x, y, strict=True))
    mean_x = sum(v * s for v, s, _ in points) / sum(w)
    mean_y = sum(v * t for v, _, t in points) / sum(w)
    spread = sum(v * (s - mean_x) ** 2 for v, s, _ in points)
    flat = (mean_y, 0.0)
    if spread <= 1e-12 * sum(v * s * s for v, s, _ in points):  # all at one place: no slope
        return flat
    b = sum(v * (s - mean_x) * (t - mean_y) for v, s, t in points) / spread
    a = mean_y - b * mean_x
    if a >= 0.0 and b >= 0.0:
        return a, b
    # The best allowed line has one of the two at zero; both candidates are allowed.
    steep = sum(v * s * t for v, s, t in points) / sum(v * s * s for v, s, _ in points)
    through_zero = (0.0, steep)
    return min(
        (flat, through_zero),
        key=lambda ab: sum(v * (ab[0] + ab[1] * s - t) ** 2 for v, s, t in points),
    )
