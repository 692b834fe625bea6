"""Lines through times: planted ones are found, and no allowed line is better."""

import itertools
import random

import pytest

from l0arm.metrics.latency_table import LatencyTable, LayerTime, fitted, line
from l0arm.metrics.module_times import PassTimes

TENSORS = {"conv": "conv.weight", "fc": "fc.weight"}
PLANTED = {"conv": (0.5, 3.0), "fc": (0.25, 1.0)}
SHARES = [
    {"conv": s, "fc": t} for s, t in [(1.0, 1.0), (0.75, 0.5), (0.5, 0.3), (0.25, 0.1), (0.0, 0.0)]
]


def times_of(shares: dict[str, float], rest: float = 2.0, along: float = 1.0) -> PassTimes:
    """``rest`` does not depend on the shares; ``along`` = m."""
    modules = {name: a + b * shares[name] for name, (a, b) in PLANTED.items()}
    growing = sum(b * shares[name] for name, (_, b) in PLANTED.items())
    return PassTimes(rest + along * growing, modules)


@pytest.mark.parametrize("along", [1.0, 1.5])
def test_planted_times_are_found(along: float) -> None:
    table = fitted(TENSORS, SHARES, [times_of(s, along=along) for s in SHARES])
    for name, (a, b) in PLANTED.items():
        layer = table.layers[name]
        assert layer.tensor == TENSORS[name]
        assert (layer.always, layer.when_open) == pytest.approx((a, b))
    assert (table.constant, table.scale) == pytest.approx((2.0, along))
    assert table.deviation == pytest.approx(0.0, abs=1e-12)


def test_the_table_gives_back_what_was_measured_when_it_is_linear() -> None:
    table = fitted(TENSORS, SHARES, [times_of(s) for s in SHARES])
    for shares in [*SHARES, {"conv": 0.9, "fc": 0.05}]:
        assert table.total(shares) == pytest.approx(times_of(shares).total)


def test_the_deviation_is_the_largest_relative_one() -> None:
    times = [times_of(s) for s in SHARES]
    times[2] = PassTimes(2 * times[2].total, times[2].modules)
    table = fitted(TENSORS, SHARES, times)
    each = [abs(table.total(s) / t.total - 1) for s, t in zip(SHARES, times, strict=True)]
    assert table.deviation == pytest.approx(max(each))
    assert 0.1 < table.deviation < 1.0


def test_the_pass_is_fitted_by_relative_deviations() -> None:
    """One layer, two lines of points: the best m by a scan, with errors as shares of the total."""
    shares = [{"conv": s} for s in (0.0, 0.5, 1.0)]
    totals = [1.0, 6.0, 9.0]
    pairs = zip(shares, totals, strict=True)
    times = [PassTimes(total, {"conv": s["conv"]}) for s, total in pairs]
    table = fitted({"conv": "w"}, shares, times)

    def off(c: float, m: float) -> float:
        return sum(((c + m * s["conv"]) / t - 1) ** 2 for s, t in zip(shares, totals, strict=True))

    best = off(table.constant, table.scale)
    for dc, dm in itertools.product((-0.01, 0.0, 0.01), repeat=2):
        assert off(table.constant + dc, table.scale + dm) >= best


def test_a_module_that_is_not_called_has_no_time() -> None:
    tensors = TENSORS | {"unused": "unused.weight"}
    shares = [s | {"unused": 1.0} for s in SHARES]
    table = fitted(tensors, shares, [times_of(s) for s in SHARES])
    assert list(table.layers) == ["conv", "fc"]


def test_prices_of_one_tensor_in_two_modules_add_up() -> None:
    layers = {"a": LayerTime("w", 1.0, 2.0), "b": LayerTime("w", 1.0, 3.0)}
    layers["c"] = LayerTime("v", 0.0, 1.0)
    assert LatencyTable(layers, 0.5, 2.0, 0.0).prices() == {"w": 10.0, "v": 2.0}


@pytest.mark.parametrize("seed", range(20))
def test_no_allowed_line_is_better(seed: int) -> None:
    draw = random.Random(seed)
    x, y = ([draw.random() for _ in range(5)] for _ in range(2))
    if seed % 2:
        y = [max(0.0, 2 * s - 0.5) for s in x]  # wants a < 0
    w = [draw.random() + 0.1 for _ in x]
    a, b = line(x, y, w)
    assert a >= 0
    assert b >= 0

    def off(a: float, b: float) -> float:
        return sum(v * (a + b * s - t) ** 2 for v, s, t in zip(w, x, y, strict=True))

    for _ in range(300):
        assert off(2 * draw.random(), 4 * draw.random()) >= off(a, b)
        near = (max(0.0, a + draw.gauss(0, 0.01)), max(0.0, b + draw.gauss(0, 0.01)))
        assert off(*near) >= off(a, b) - 1e-15


@pytest.mark.parametrize("place", [0.0, 0.3])
def test_points_at_one_place_have_no_slope(place: float) -> None:
    assert line([place] * 3, [1.0, 2.0, 6.0]) == pytest.approx((3.0, 0.0))
