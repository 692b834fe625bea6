"""Times of modules, by a clock that only the modules move."""

import time
from collections.abc import Iterator

import pytest
import torch
from tests.helpers.ticking import CLOCK, Network, Ticking
from torch import Tensor, nn

from l0arm.costs.module_times import Patience, Stopwatch, module_times, wall_clock
from l0arm.equality.example import Example

X = Example.of(torch.zeros(2, 4))
NAMES = ("first", "second", "third")
assert X is not None


class Nested(nn.Module):
    """Calls a layer twice, itself watched, and leaves another alone."""

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


def test_every_module_and_the_whole_pass_are_told() -> None:
    (times,) = module_times([Network()], NAMES, X, CLOCK)
    assert times.total == pytest.approx(0.5 + 2.25 + 4.125 + 1.75)
    assert times.modules == pytest.approx({"first": 2.25, "second": 4.125, "third": 1.75})


def test_calls_add_up_what_is_inside_counts_once_and_what_is_not_called_not_at_all() -> None:
    root = nn.Sequential(Nested())
    (times,) = module_times([root], ["0", "0.inner", "0.unused"], X, CLOCK)
    assert times.total == pytest.approx(6.5)
    assert times.modules == pytest.approx({"0": 0.5, "0.inner": 6.0})


def test_what_runs_between_modules_is_told_by_the_one_before() -> None:
    (times,) = module_times([Disturbed(0.5)], NAMES, X, CLOCK)
    assert times.after == pytest.approx({"first": 0.1, "second": 0.2, "third": 0.3})
    (times,) = module_times([nn.Sequential(Nested())], ["0", "0.inner"], X, CLOCK)
    assert times.after == pytest.approx({"0": 0.0})  # between the calls, "0" is at work


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


def test_disturbances_do_not_count_though_no_pass_is_without() -> None:
    (times,) = module_times([Disturbed()], NAMES, X, CLOCK)
    assert times.total == pytest.approx(8.625 + 0.6)
    assert times.modules == pytest.approx({"first": 2.25, "second": 4.125, "third": 1.75})


class Overhead:
    """A clock that itself takes a millisecond to read."""

    def __call__(self) -> float:
        CLOCK.pass_by(1.0)
        return CLOCK()


def test_a_whole_pass_is_told_without_what_watching_takes() -> None:
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


def test_of_a_model_that_does_not_always_do_the_same_the_first_pass_counts() -> None:
    (times,) = module_times([Changing()], ["layer"], X, CLOCK, Patience(rounds=3))
    assert times.modules == pytest.approx({"layer": 3.0})


def test_networks_take_turns(calls: list[int]) -> None:
    networks = [Ticking(4, width, 0.0, 0.0) for width in (1, 2)]
    module_times(networks, [""], X, CLOCK, Patience(rounds=2))
    assert calls == [4, 4, 4, 8, 8, 8] * 2


def test_slow_networks_get_fewer_rounds_but_some(calls: list[int]) -> None:
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


def test_mode_random_numbers_and_hooks_are_as_before() -> None:
    network, state = Curious(), torch.get_rng_state()
    module_times([network], [""], X, CLOCK)
    assert network.seen == (False, True)
    assert network.training
    assert torch.equal(torch.get_rng_state(), state)
    assert not network._forward_hooks
    assert not network._forward_pre_hooks


def test_hooks_go_also_after_an_error() -> None:
    network = Network()
    with pytest.raises(RuntimeError), Stopwatch(network, NAMES, CLOCK):
        network(torch.zeros(2, 5))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in network.modules())


def test_the_clock_of_the_processor_is_the_wall_clock() -> None:
    assert wall_clock(torch.device("cpu")) is time.perf_counter
