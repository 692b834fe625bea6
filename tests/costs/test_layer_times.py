"""The linear model of layer times: its fit, its file, and the key of all it depends on."""

import copy
import json
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import l0arm
from l0arm.costs.layer_times import (
    LARGEST,
    LatencyTable,
    LayerTime,
    Network,
    Openness,
    fitted,
    latency_key,
    linear,
    read_table,
    table_file,
    write_table,
)
from l0arm.costs.timing import PassTimes
from l0arm.equality.example import Example
from l0arm.gating import Gated
from l0arm.models import MLP

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


def test_a_column_that_does_not_vary_gets_no_slope() -> None:
    assert linear([(0.3, 1.0)] * 3, [1.0, 2.0, 6.0]) == (0.0, 0.0)
    slopes = linear([(1.0, 0.0), (1.0, 0.5), (1.0, 1.0)], [1.0, 2.0, 3.0])
    assert slopes == pytest.approx((0.0, 2.0))


LAYERS = {
    "conv": LayerTime("conv.weight", weights=3.0, read=0.5, made=0.25),
    "fc": LayerTime("fc.weight", weights=1.0, read=0.0, made=2.0),
}
TABLE = LatencyTable(LAYERS, constant=2.0, dense=8.5, deviation=0.1)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = table_file("abc", tmp_path)
    write_table(path, "abc", TABLE)
    assert read_table(path, "abc", TENSORS) == TABLE
    assert [file.name for file in path.parent.iterdir()] == ["abc.json"]  # nothing temporary


def test_the_file_is_in_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert table_file("abc") == Path("/somewhere/l0arm/latency/abc.json")


LAYER: dict[str, Any] = asdict(LAYERS["conv"])
CHANGES: list[dict[str, Any]] = [
    {"format": 2},
    {"digest": "abd"},
    {"constant": -1.0},
    {"constant": float("nan")},
    {"constant": float("inf")},
    {"constant": "1.5"},
    {"dense": 0.0},
    {"deviation": None},
    {"deviation": True},
    {"layers": {}},
    {"layers": []},
    {"layers": 3},
    {"layers": {"conv": LAYER | {"tensor": "fc.weight"}}},
    {"layers": {"conv": LAYER | {"tensor": ["conv.weight"]}}},
    {"layers": {"other": LAYER}},
    {"layers": {"conv": LAYER | {"weights": -0.5}}},
    {"layers": {"conv": LAYER | {"made": "long"}}},
    {"layers": {"conv": {key: LAYER[key] for key in ("tensor", "weights", "read")}}},
    {"layers": {"conv": 1.0}},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_table_that_no_measurement_gives_is_not_read(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    path = table_file("abc", tmp_path)
    write_table(path, "abc", TABLE)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert read_table(path, "abc", TENSORS) is None


@pytest.mark.parametrize("key", ["format", "digest", "layers", "constant", "dense", "deviation"])
def test_a_file_with_a_missing_field_is_not_read(tmp_path: Path, key: str) -> None:
    path = table_file("abc", tmp_path)
    write_table(path, "abc", TABLE)
    record = json.loads(path.read_text())
    del record[key]
    path.write_text(json.dumps(record))
    assert read_table(path, "abc", TENSORS) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"3", b"[" * 10**5, b'{"format": 1}']
)
def test_a_damaged_file_is_not_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.json").write_bytes(content)
    assert read_table(tmp_path / "t.json", "abc", TENSORS) is None


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = table_file("abc", tmp_path)
    write_table(path, "abc", TABLE)
    path.write_text(path.read_text() + " " * LARGEST)
    assert read_table(path, "abc", TENSORS) is None


def test_a_missing_file_or_a_folder_gives_no_table(tmp_path: Path) -> None:
    assert read_table(tmp_path / "none.json", "abc", TENSORS) is None
    assert read_table(tmp_path, "abc", TENSORS) is None


def test_a_folder_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "latency").write_text("a file where a folder should be")
    path = table_file("abc", tmp_path)
    write_table(path, "abc", TABLE)
    assert read_table(path, "abc", TENSORS) is None


def key(
    model: MLP | None = None,
    x: Tensor | None = None,
    change: Callable[[Gated], object] = lambda gated: None,
) -> str:
    model = MLP((6, 5, 4, 3)) if model is None else model
    gated = l0arm.sparsify(model, lam=0.0)
    change(gated)
    return latency_key(gated, Example((torch.zeros(2, 6) if x is None else x,)))


def test_values_do_not_change_the_key() -> None:
    def values(gated: Gated) -> None:
        gated.phi.data.normal_()
        gated.model.fc1.weight.data.normal_()

    assert len({key(), key(x=torch.ones(2, 6)), key(change=values), key()}) == 1


def test_initial_probabilities_do_not_change_the_key() -> None:
    model = MLP((6, 5, 4, 3))
    others = [replace(group, initial=0.9) for group in model.groups()]
    gated = l0arm.sparsify(model, others, lam=0.0)
    assert latency_key(gated, Example((torch.zeros(2, 6),))) == key()


class Wordy(MLP):
    """Another class, and another forward."""

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(super().forward(x), 1)


def with_floor() -> str:
    model = MLP((6, 5, 4, 3))
    groups = [replace(group, floor=2) for group in model.groups()]
    gated = l0arm.sparsify(model, groups, lam=0.0)
    return latency_key(gated, Example((torch.zeros(2, 6),)))


def test_what_changes_the_times_changes_the_key() -> None:
    model = MLP((6, 5, 4, 3))
    keys = [
        key(),
        key(MLP((6, 5, 5, 3))),
        key(copy.deepcopy(model).double()),
        key(Wordy((6, 5, 4, 3))),
        key(x=torch.zeros(3, 6)),
        key(x=torch.zeros(2, 6).double()),
        key(x=torch.zeros(6, 2).t()),  # same shape, other strides
        with_floor(),
    ]
    assert len(set(keys)) == len(keys)


def test_an_edited_forward_changes_the_key() -> None:
    def once(self: MLP, x: Tensor) -> Tensor:
        return MLP.forward(self, x)

    def doubled(self: MLP, x: Tensor) -> Tensor:
        return 2 * MLP.forward(self, x)

    def tripled(self: MLP, x: Tensor) -> Tensor:
        return 3 * MLP.forward(self, x)

    made = [type("Edited", (MLP,), {"forward": f}) for f in (once, doubled, tripled)]
    assert len({key(kind((6, 5, 4, 3))) for kind in made}) == 3


def test_settings_without_a_tensor_change_the_key() -> None:
    models = [MLP((6, 5, 4, 3)) for _ in range(2)]
    for stride, model in enumerate(models, 1):
        model.extra = nn.Conv2d(1, 1, 3, stride=stride)
    assert key(models[0]) != key(models[1])


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("torch.get_num_threads", lambda: 7),
        ("torch.__version__", "9.9"),
        ("torch.backends.cpu.get_cpu_capability", lambda: "none"),
        ("l0arm.costs.layer_times.processor_name", lambda: "another"),
        ("platform.machine", lambda: "abacus"),
    ],
)
def test_another_machine_changes_the_key(
    what: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key()
    monkeypatch.setattr(what, value)
    assert key() != before
