"""Times of modules, by a clock that only the modules move."""

import time
from collections.abc import Iterator

import pytest
import torch
from tests.metrics.ticking import CLOCK, Network, Ticking
from torch import Tensor, nn

from l0arm.groups.example import Example
from l0arm.metrics.module_times import Patience, Stopwatch, module_times, wall_clock

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


def test_a_disturbance_of_most_rounds_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    network, rounds = Network(), [0]
    own = network.forward

    def disturbed(x: Tensor) -> Tensor:
        rounds[0] += 1
        CLOCK.pass_by(0.0 if (rounds[0] - 1) // 3 % 3 == 0 else 100.0)  # two rounds of three
        return own(x)

    monkeypatch.setattr(network, "forward", disturbed)
    (times,) = module_times([network], NAMES, X, CLOCK)
    assert times.total == pytest.approx(8.625)


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
