"""Lines through times: planted ones are found, and no allowed line is better."""

import random

import numpy as np
import pytest

from l0arm.costs.latency_table import LatencyTable, LayerTime, Network, Openness, fitted, linear
from l0arm.costs.module_times import PassTimes

TENSORS = {"conv": "conv.weight", "fc": "fc.weight"}
# a, b (weights), d (read), e (made), and r (made) after it
PLANTED = {"conv": (0.5, 3.0, 0.25, 0.125, 1.0), "fc": (0.25, 1.0, 0.0, 2.0, 0.0)}
SIDES = [(1.0, 1.0), (0.75, 0.5), (0.5, 0.9), (0.25, 0.4), (0.9, 0.1), (0.125, 0.0), (0.6, 0.6)]


def network(read: float, made: float) -> Network:
    return {
        "conv": Openness(read * made, read, made),
        "fc": Openness(made * read**2, made, read**2),
    }


NETWORKS = [network(*sides) for sides in SIDES]


def times_of(network: Network, rest: float = 2.0) -> PassTimes:
    """``rest`` does not depend on the network."""
    modules, after = {}, {}
    for name, (a, b, d, e, r) in PLANTED.items():
        layer = network[name]
        modules[name] = a + b * layer.weights + d * layer.read + e * layer.made
        after[name] = r * layer.made
    return PassTimes(rest + sum(modules.values()) + sum(after.values()), modules, after)


def test_planted_times_are_found() -> None:
    table = fitted(TENSORS, NETWORKS, [times_of(n) for n in NETWORKS])
    for name, (_, b, d, e, r) in PLANTED.items():
        layer = table.layers[name]
        assert layer.tensor == TENSORS[name]
        assert (layer.weights, layer.read, layer.made) == pytest.approx((b, d, e + r), abs=1e-10)
    assert table.constant == pytest.approx(2.0 + 0.5 + 0.25)
    assert table.dense == pytest.approx(times_of(network(1.0, 1.0)).total)
    assert table.deviation == pytest.approx(0.0, abs=1e-9)


def test_the_table_gives_back_what_was_measured_when_it_is_linear() -> None:
    table = fitted(TENSORS, NETWORKS, [times_of(n) for n in NETWORKS])
    for one in [*NETWORKS, network(0.3, 0.8)]:
        assert table.total(one) == pytest.approx(times_of(one).total)


def test_the_deviation_is_the_largest_relative_one() -> None:
    times = [times_of(n) for n in NETWORKS]
    times[2] = PassTimes(2 * times[2].total, times[2].modules, times[2].after)
    table = fitted(TENSORS, NETWORKS, times)
    each = [abs(table.total(n) / t.total - 1) for n, t in zip(NETWORKS, times, strict=True)]
    assert table.deviation == pytest.approx(max(each))
    assert 0.1 < table.deviation < 1.0


def test_the_constant_is_the_mean_of_what_the_layers_leave() -> None:
    rests = [2.0, 1.0, 3.0, 2.5, 0.5, 4.0, 1.5]
    times = [times_of(n, rest) for n, rest in zip(NETWORKS, rests, strict=True)]
    assert fitted(TENSORS, NETWORKS, times).constant == pytest.approx(14.5 / 7 + 0.75)


def test_a_module_that_is_not_called_has_no_time() -> None:
    tensors = TENSORS | {"unused": "unused.weight"}
    networks = [{**n, "unused": Openness(1.0, 1.0, 1.0)} for n in NETWORKS]
    table = fitted(tensors, networks, [times_of(n) for n in NETWORKS])
    assert list(table.layers) == ["conv", "fc"]


def test_prices_of_one_tensor_in_two_modules_add_up() -> None:
    layers = {"a": LayerTime("w", 2.0, 1.0, 0.5), "b": LayerTime("w", 3.0, 0.0, 0.25)}
    layers["c"] = LayerTime("v", 1.0, 0.0, 0.0)
    table = LatencyTable(layers, 0.5, 9.0, 0.0)
    assert table.by_tensor(lambda layer: layer.weights) == {"w": 5.0, "v": 1.0}
    assert table.by_tensor(lambda layer: layer.made) == {"w": 0.75, "v": 0.0}


@pytest.mark.parametrize("seed", range(20))
def test_no_allowed_coefficients_are_better(seed: int) -> None:
    """Against a random search, far and near; the constant is the best for the slopes given."""
    draw = random.Random(seed)
    x = np.array([[draw.random() for _ in range(2)] for _ in range(6)])
    y = np.array([draw.random() for _ in range(6)])
    if seed % 2:
        y = np.maximum(0.0, 2 * x[:, 0] - x[:, 1])  # wants a negative slope

    def off(slopes: np.ndarray) -> float:
        left = y - x @ slopes
        return float(np.sum((left - max(0.0, left.mean())) ** 2))

    found = np.array(linear(x.tolist(), y.tolist()))
    assert (found >= 0).all()
    for _ in range(300):
        far = np.array([4 * draw.random() for _ in range(2)])
        near = np.maximum(0.0, found + [draw.gauss(0, 0.01) for _ in range(2)])
        assert min(off(far), off(near)) >= off(found) - 1e-12


def test_what_does_not_vary_gets_no_slope() -> None:
    assert linear([(0.3, 1.0)] * 3, [1.0, 2.0, 6.0]) == (0.0, 0.0)
    slopes = linear([(1.0, 0.0), (1.0, 0.5), (1.0, 1.0)], [1.0, 2.0, 3.0])
    assert slopes == pytest.approx((0.0, 2.0))
