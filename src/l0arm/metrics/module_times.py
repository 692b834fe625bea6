"""How long chosen modules of several networks take within a pass, measured side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import quantiles
from typing import Any

import torch
from torch import nn

from l0arm.groups.example import Example
from l0arm.groups.modes import in_eval

Clock = Callable[[], float]  # seconds
FEWEST = 3  # rounds, however slow the networks are


@dataclass(frozen=True)
class PassTimes:
    """Milliseconds of one pass: all of it, and what the watched modules take of it.

    A module that the pass does not call is not in ``modules``. The total is that of passes that
    nobody watched: a hook takes time, too.
    """

    total: float
    modules: Mapping[str, float]


@dataclass(frozen=True)
class Patience:
    """How often: ``rounds`` at most, and none begins after ``seconds`` once there are a few."""

    rounds: int = 15
    seconds: float = 10.0


def wall_clock(device: torch.device) -> Clock:
    """Seconds; where a device works on while Python goes ahead, when it has done its work."""
    if device.type == "cpu":
        return time.perf_counter
    synchronise = torch.get_device_module(device).synchronize

    def now() -> float:
        synchronise(device)
        return time.perf_counter()

    return now


def module_times(
    networks: Sequence[nn.Module],
    names: Iterable[str],
    example: Example,
    clock: Clock,
    patience: Patience = Patience(),  # noqa: B008 (frozen)
) -> list[PassTimes]:
    """Lower quartiles over rounds in which all networks take turns, in eval and inference mode.

    What the networks draw of random numbers is not missed outside.
    """
    names = list(names)
    seen: list[list[PassTimes]] = [[] for _ in networks]
    with torch.random.fork_rng(), in_eval(*networks), torch.inference_mode():
        start = clock()
        for number in range(patience.rounds):
            if number >= FEWEST and clock() - start > patience.seconds:
                break
            for network, times in zip(networks, seen, strict=True):
                times.append(_three_passes(network, names, example, clock))
    return [_undisturbed(times) for times in seen]


def _three_passes(
    network: nn.Module, names: Sequence[str], example: Example, clock: Clock
) -> PassTimes:
    """One to warm the caches after the other networks' turns, one for the total, one watched."""
    network(*example.args, **example.kwargs)
    start = clock()
    network(*example.args, **example.kwargs)
    total = clock() - start
    with Stopwatch(network, names, clock) as watch:
        network(*example.args, **example.kwargs)
    return PassTimes(1e3 * total, {name: 1e3 * spent for name, spent in watch.spent.items()})


class Stopwatch:
    """Hooks that add up the time inside modules; a watched one within another counts once."""

    def __init__(self, network: nn.Module, names: Sequence[str], clock: Clock) -> None:
        self.spent: dict[str, float] = {}  # seconds
        self._network, self._names, self._clock = network, names, clock
        self._entered: list[float] = []  # when, for each module that is at work
        self._within: list[float] = []  # what watched modules inside of it have taken
        self._hooks = ExitStack()

    def __enter__(self) -> Stopwatch:
        for name in self._names:
            module = self._network.get_submodule(name)
            for handle in (
                module.register_forward_pre_hook(self._enter),
                module.register_forward_hook(partial(self._leave, name)),
            ):
                self._hooks.callback(handle.remove)
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._within.append(0.0)
        self._entered.append(self._clock())

    def _leave(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        elapsed = self._clock() - self._entered.pop()
        own = elapsed - self._within.pop()
        self.spent[name] = self.spent.get(name, 0.0) + own
        if self._within:
            self._within[-1] += elapsed


def _undisturbed(times: Sequence[PassTimes]) -> PassTimes:
    called = times[0].modules
    return PassTimes(
        _lower_quartile([t.total for t in times]),
        {name: _lower_quartile([t.modules.get(name, 0.0) for t in times]) for name in called},
    )


def _lower_quartile(values: Sequence[float]) -> float:
    """Another program can only add to a time, so the median of a busy machine is too high."""
    return quantiles(values, n=4, method="inclusive")[0]
