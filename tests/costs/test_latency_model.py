"""Expected latency: planted times are recovered and kept, and damaged files are replaced."""

import json
import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.ticking import CLOCK, Network, Ticking
from torch import Tensor, nn

import l0arm
from l0arm.costs.budget import Budget
from l0arm.costs.fitting import fit_threshold
from l0arm.costs.latency_model import (
    LatencyWarning,
    latency_cost,
    latency_table,
    measured,
    timed_layers,
)
from l0arm.costs.layer_times import LatencyTable, LayerTime, latency_key, table_file, write_table
from l0arm.equality.example import Example
from l0arm.gating import Gated, Group, Slice
from l0arm.models import MLP, LeNet5, WideResNet

X = torch.zeros(2, 4)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporary cache, and a clock that only layers advance."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("l0arm.costs.latency_model.wall_clock", lambda device: CLOCK)
    Ticking.calls.clear()


def example(x: Tensor = X) -> Example:
    return Example((x,))


def ticking(**options: object) -> Gated:
    torch.manual_seed(0)
    return l0arm.sparsify(Network(), lam=0.0, **options)  # type: ignore[arg-type]


def kept(gated: Gated) -> Path:
    return table_file(latency_key(gated, example()))


def test_planted_times_are_found() -> None:
    layers = latency_table(ticking(), example()).layers
    second = layers["second"]
    assert (second.weights, second.read, second.made) == pytest.approx((4.0, 0.0, 0.0), abs=1e-9)
    # Only one side of these is gated: its share is that of the weights, and takes part of the time.
    assert layers["first"].weights + layers["first"].made == pytest.approx(2.0)
    assert layers["third"].weights + layers["third"].read == pytest.approx(0.75)
    table = latency_table(ticking(), example())
    assert table.constant == pytest.approx(0.5 + 0.25 + 0.125 + 1.0)
    assert table.dense == pytest.approx(8.625)
    assert table.deviation == pytest.approx(0.0, abs=1e-9)


def test_the_expected_latency_is_the_mean_latency_of_the_draws() -> None:
    """Compared with the clock: the compact networks of draws are run and timed."""
    gated = ticking(threshold=0.5)
    cost = latency_cost(gated, example())
    assert cost.dense == pytest.approx(8.625)
    for seed in range(3):
        z = (torch.rand(60, generator=torch.Generator().manual_seed(seed)) < 0.4).float()
        gated.phi.data = torch.where(z > 0, 9.0, -9.0)
        small = gated.compact().eval()
        before = CLOCK.now
        small(X)
        assert float(cost(z)) == pytest.approx(1e3 * (CLOCK.now - before))
    pi = torch.rand(60, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    first, second = pi[:40].mean(), pi[40:].mean()
    by_hand = 1.875 + 2.0 * first + 4.0 * first * second + 0.75 * second
    assert float(cost(pi)) == pytest.approx(float(by_hand))


def test_measuring_leaves_the_model_unchanged() -> None:
    gated = ticking()
    gated.model.second.eval()  # frozen, as some do
    modes = [module.training for module in gated.modules()]
    state = {name: tensor.clone() for name, tensor in gated.state_dict().items()}
    shapes = {name: tensor.shape for name, tensor in gated.model.named_parameters()}
    here, host = torch.get_rng_state(), random.getstate()
    measured(gated, example(), timed_layers(gated))
    assert [module.training for module in gated.modules()] == modes
    assert all(torch.equal(state[name], tensor) for name, tensor in gated.state_dict().items())
    assert {name: tensor.shape for name, tensor in gated.model.named_parameters()} == shapes
    assert torch.equal(torch.get_rng_state(), here)
    assert random.getstate() == host
    assert gated.check(X) < 1e-5  # the gates still act
    Ticking.calls.clear()
    gated.model(X)
    assert Ticking.calls == [160, 800, 60]


def test_the_hooks_of_the_gates_are_not_timed() -> None:
    gated = ticking()
    Ticking.hooks.clear()
    measured(gated, example(), timed_layers(gated))
    assert set(Ticking.hooks) == {0, 1}  # those of the stopwatch, in one pass of three
    assert Ticking.hooks.count(0) == 2 * Ticking.hooks.count(1)


def test_a_kept_table_is_not_measured_again() -> None:
    first = latency_table(ticking(), example())
    assert Ticking.calls
    Ticking.calls.clear()
    assert latency_table(ticking(), example()) == first
    assert Ticking.calls == []
    latency_table(ticking(), example(torch.zeros(3, 4)))  # another batch is another table
    assert Ticking.calls


@pytest.mark.parametrize("damage", ["cut short", "another network", "negative"])
def test_a_damaged_table_is_measured_again_and_replaced(damage: str) -> None:
    gated = ticking()
    latency_table(gated, example())
    text = kept(gated).read_text()
    record = json.loads(text)
    record["layers"]["second"]["weights"] = -4.0
    bad = {
        "cut short": text[:-40],
        "another network": text.replace('"digest": "', '"digest": "0'),
        "negative": json.dumps(record),
    }[damage]
    kept(gated).write_text(bad)
    Ticking.calls.clear()
    again = latency_table(gated, example())
    assert Ticking.calls
    assert again.layers["second"].weights == pytest.approx(4.0)
    Ticking.calls.clear()
    assert latency_table(gated, example()) == again
    assert Ticking.calls == []


@pytest.mark.parametrize("make", [MLP, LeNet5, lambda: WideResNet(10, 1)])
def test_layers_with_gates_are_timed_by_their_largest_cut_tensor(make: object) -> None:
    model = make()  # type: ignore[operator]
    gated = l0arm.sparsify(model, lam=0.0)
    layers = timed_layers(gated)
    reached = {tensor.rpartition(".")[0] for tensor in gated.layout.tensors}
    assert set(layers) == reached
    assert all(tensor == f"{module}.weight" for module, tensor in layers.items())


def test_gathered_inputs_count_for_the_layer_that_reads_them() -> None:
    """LeNet's flattened inputs are selected by a module that wraps fc1 under its name."""
    gated = l0arm.sparsify(LeNet5(), lam=0.0)
    table = measured(gated, example(torch.zeros(1, 1, 28, 28)), timed_layers(gated))
    assert list(table.layers) == ["conv1", "conv2", "fc1", "fc2"]


class Working(Network):
    """Works on the outputs of its layers: 3 ms per hundred elements."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        CLOCK.pass_by(0.03 * x.numel())
        x = self.second(x)
        CLOCK.pass_by(0.03 * x.numel())
        x = self.third(x)
        CLOCK.pass_by(0.03 * x.numel())
        return x


def test_work_on_the_output_of_a_layer_grows_with_the_units_it_makes() -> None:
    gated = l0arm.sparsify(Working(), lam=0.0)
    cost = latency_cost(gated, example())
    pi = torch.rand(60, dtype=torch.float64)
    first, second = (float(part.mean()) for part in (pi[:40], pi[40:]))
    layers = 1.375 + 2.0 * first + 4.0 * first * second + 0.75 * second
    by_hand = layers + 0.03 * (2 * 40 * first + 2 * 20 * second + 2 * 3)
    assert float(cost(pi)) == pytest.approx(by_hand)


class Bent(Network):
    """Not linear: only the dense network takes long."""

    def __init__(self, more: float = 300.0) -> None:
        super().__init__()
        self.more = more

    def forward(self, x: Tensor) -> Tensor:
        CLOCK.pass_by(self.more if self.second.weight.numel() == 800 else 0.0)
        return super().forward(x)


def test_times_that_are_not_linear_warn() -> None:
    gated = l0arm.sparsify(Bent(), lam=0.0)
    with pytest.warns(LatencyWarning, match=r"is off by up to \d+ % .* the next call measures"):
        table = latency_table(gated, example())
    assert table.deviation > 0.25
    assert not kept(gated).exists()


def test_shares_refer_to_the_measured_time() -> None:
    gated = l0arm.sparsify(Bent(10.0), lam=0.0)
    with pytest.warns(LatencyWarning):
        cost = latency_cost(gated, example())
    assert cost.dense == pytest.approx(10.0 + 8.625)
    assert float(cost(torch.ones(60))) < 0.9 * cost.dense  # the value of the linear model


def test_gates_on_single_weights_save_no_time() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    gated = l0arm.sparsify(model, [Group("w", 12, reads=(Slice("0.weight", None),))], lam=0.0)
    with pytest.raises(ValueError, match="nothing to pull at: no module"):
        latency_cost(gated, example())


def planted(gated: Gated, x: Tensor) -> LatencyTable:
    """Write a table of synthetic times where measured ones are kept."""
    layers = {
        name: LayerTime(tensor, weights=1.0 + number, read=0.25, made=0.5 * number)
        for number, (name, tensor) in enumerate(timed_layers(gated).items())
    }
    table = LatencyTable(layers, constant=1.0, dense=9.25, deviation=0.05)
    digest = latency_key(gated, example(x))
    write_table(table_file(digest), digest, table)
    return table


def train(gated: Gated, x: Tensor, y: Tensor) -> None:
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=0.01, gate_lr=0.01))
    for _ in range(600):
        optimizer.zero_grad()
        gated.loss(lambda: F.cross_entropy(gated(x), y)).backward()
        optimizer.step()


def test_training_ends_within_two_points_of_the_budget() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(256, 20), torch.randn(20, 3)
    y = (x @ w).argmax(1)
    planted(l0arm.sparsify(MLP((20, 30, 20, 3)), lam=0.0), x)
    model = MLP((20, 30, 20, 3))
    options = {"example_inputs": x, "initial": 0.9}
    gated = l0arm.sparsify(model, model.groups(), budget={"latency": "60%"}, **options)
    assert isinstance(gated.budget, Budget)
    assert gated.budget.cost.dense == 9.25  # of the planted table
    gated.budget.warmup = 100
    train(gated, x, y)
    cost, pi = gated.budget.cost, gated.gates.open_probability.detach()
    assert float(cost(pi)) / cost.dense == pytest.approx(0.6, abs=0.02)
    fit_threshold(gated)
    left = gated.deterministic().gt(0).float()
    assert 0.55 < float(cost(left)) / cost.dense <= 0.6
    a, b, c = (float(part.mean()) for part in gated.per_group(left).values())
    by_hand = 1.0 + 1.0 * a * b + 2.0 * b * c + 0.5 * c + 3.0 * c + 1.0  # fc3 makes no gated unit
    by_hand += 0.25 * (a + b + c)  # what fc1, fc2 and fc3 read
    assert float(cost(left)) == pytest.approx(by_hand)
