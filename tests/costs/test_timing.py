"""Times of whole passes, and of modules by a clock that only the modules advance."""

import time
from collections.abc import Iterator

import pytest
import torch
from tests.helpers.ticking import CLOCK, Network, Ticking
from torch import Tensor, nn

from l0arm import sparsify
from l0arm.costs import Latency, latency
from l0arm.costs.timing import Patience, Stopwatch, module_times, wall_clock
from l0arm.equality.example import Example
from l0arm.models import MLP

X = Example((torch.zeros(2, 4),))
NAMES = ("first", "second", "third")


class Recorder(nn.Module):
    def __init__(self, name: str, calls: list[str]) -> None:
        super().__init__()
        self.name, self.calls = name, calls

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(self.name)
        return x


def test_quartiles_enclose_the_median() -> None:
    assert Latency.of([1.0, 2.0, 3.0, 4.0, 5.0]) == Latency(median=3.0, low=1.5, high=4.5)


def test_every_model_is_measured_and_takes_time() -> None:
    model = MLP((20, 10, 2))
    gated = sparsify(MLP((20, 10, 2)), lam=0.0)
    measured = latency({"dense": model, "gated": gated}, torch.randn(3, 20), rounds=4, calls=1)
    assert list(measured) == ["dense", "gated"]
    assert all(0 < time.low <= time.median <= time.high for time in measured.values())


def test_rounds_are_interleaved_after_a_warm_up() -> None:
    calls: list[str] = []
    models = {name: Recorder(name, calls) for name in "ab"}
    latency(models, torch.ones(1), rounds=2, calls=3)
    assert "".join(calls) == "ab" + "aaabbb" * 2


def test_models_are_measured_in_eval_mode_and_go_back_to_their_own() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2).eval())
    before = model[0].running_mean.clone()
    latency({"model": model}, torch.randn(4, 2), rounds=2, calls=1)
    assert torch.equal(model[0].running_mean, before)
    assert [m.training for m in (model, model[0], model[1])] == [True, True, False]


class Nested(nn.Module):
    """Calls one layer twice and another never."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.unused = Ticking(4, 4, 1.0, 2.0), Ticking(4, 4, 1.0, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        CLOCK.pass_by(0.5)
        return self.inner(self.inner(x))


@pytest.fixture
def calls() -> Iterator[list[int]]:
    Ticking.calls.clear()
    yield Ticking.calls
    Ticking.calls.clear()


def test_every_module_and_the_whole_pass_are_timed() -> None:
    (times,) = module_times([Network()], NAMES, X, CLOCK)
    assert times.total == pytest.approx(0.5 + 2.25 + 4.125 + 1.75)
    assert times.modules == pytest.approx({"first": 2.25, "second": 4.125, "third": 1.75})


def test_calls_add_up_and_nested_time_counts_once_and_uncalled_modules_have_none() -> None:
    root = nn.Sequential(Nested())
    (times,) = module_times([root], ["0", "0.inner", "0.unused"], X, CLOCK)
    assert times.total == pytest.approx(6.5)
    assert times.modules == pytest.approx({"0": 0.5, "0.inner": 6.0})


def test_what_runs_between_modules_belongs_to_the_one_before() -> None:
    (times,) = module_times([Disturbed(0.5)], NAMES, X, CLOCK)
    assert times.after == pytest.approx({"first": 0.1, "second": 0.2, "third": 0.3})
    (times,) = module_times([nn.Sequential(Nested())], ["0", "0.inner"], X, CLOCK)
    assert times.after == pytest.approx({"0": 0.0})  # between the calls, "0" is running


class Disturbed(Network):
    """Every pass is interrupted somewhere, each time in another layer."""

    rounds = 0

    def forward(self, x: Tensor) -> Tensor:
        self.rounds += 1
        CLOCK.pass_by(0.5 + 100.0 * (self.rounds % 4 == 0))
        for number, layer in enumerate((self.first, self.second, self.third), 1):
            x = layer(x)
            CLOCK.pass_by(0.1 * number + 50.0 * (self.rounds % 4 == number))
        return x


def test_disturbances_do_not_count_although_every_pass_has_one() -> None:
    (times,) = module_times([Disturbed()], NAMES, X, CLOCK)
    assert times.total == pytest.approx(8.625 + 0.6)
    assert times.modules == pytest.approx({"first": 2.25, "second": 4.125, "third": 1.75})


class Overhead:
    """A clock that itself takes a millisecond to read."""

    def __call__(self) -> float:
        CLOCK.pass_by(1.0)
        return CLOCK()


def test_the_time_of_a_whole_pass_excludes_that_of_the_hooks() -> None:
    (times,) = module_times([Network()], NAMES, X, Overhead())
    assert times.total == pytest.approx(8.625 + 1.0)  # 7 laps would add 7


class Changing(nn.Module):
    """Calls its layer once, then twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = Ticking(4, 4, 1.0, 2.0), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        for _ in range(1 if self.calls <= 3 else 2):
            x = self.layer(x)
        return x


def test_the_first_pass_counts_if_a_model_changes_what_it_calls() -> None:
    (times,) = module_times([Changing()], ["layer"], X, CLOCK, Patience(rounds=3))
    assert times.modules == pytest.approx({"layer": 3.0})


def test_networks_take_turns(calls: list[int]) -> None:
    networks = [Ticking(4, width, 0.0, 0.0) for width in (1, 2)]
    module_times(networks, [""], X, CLOCK, Patience(rounds=2))
    assert calls == [4, 4, 4, 8, 8, 8] * 2


def test_slow_networks_get_fewer_rounds_but_at_least_three(calls: list[int]) -> None:
    slow = Ticking(4, 1, 400.0, 0.0)
    module_times([slow], [""], X, CLOCK, Patience(rounds=50, seconds=5.0))
    assert len(calls) == 3 * 5  # 1.2 s each: the fifth begins at 4.8
    calls.clear()
    module_times([slow], [""], X, CLOCK, Patience(rounds=50, seconds=0.1))
    assert len(calls) == 3 * 3


class Curious(nn.Module):
    """Draws random numbers, and notes how it was called."""

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(3)
        self.seen = (self.training, torch.is_inference_mode_enabled())
        return x


def test_mode_random_numbers_and_hooks_are_restored() -> None:
    network, state = Curious(), torch.get_rng_state()
    module_times([network], [""], X, CLOCK)
    assert network.seen == (False, True)
    assert network.training
    assert torch.equal(torch.get_rng_state(), state)
    assert not network._forward_hooks
    assert not network._forward_pre_hooks


def test_hooks_are_removed_after_an_error() -> None:
    network = Network()
    with pytest.raises(RuntimeError), Stopwatch(network, NAMES, CLOCK):
        network(torch.zeros(2, 5))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in network.modules())


def test_the_clock_of_the_processor_is_the_wall_clock() -> None:
    assert wall_clock(torch.device("cpu")) is time.perf_counter
