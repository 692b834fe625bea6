"""How long chosen modules of several networks take within a pass, measured side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from l0arm.equality.example import Example
from l0arm.equality.modes import in_eval

Clock = Callable[[], float]  # seconds
FEWEST = 3  # rounds, however slow the networks are


@dataclass(frozen=True)
class PassTimes:
    """Milliseconds of one pass: all of it, and what the watched modules take of it.

    A module that the pass does not call is not in ``modules``. The total is that of passes that
    nobody watched: a hook takes time, too. ``after`` is what runs between a module and the next
    one, outside of all: most of it works on what the module gave.
    """

    total: float
    modules: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(frozen=True)
class Patience:
    """How often: ``rounds`` at most, and none begins after ``seconds`` once there are a few."""

    rounds: int = 30
    seconds: float = 20.0


def wall_clock(device: torch.device) -> Clock:
    """Seconds; where a device works on while Python goes ahead, when it has done its work."""
    if device.type == "cpu":
        return time.perf_counter
    synchronise = torch.get_device_module(device).synchronize

    def now() -> float:
        synchronise(device)
        return time.perf_counter()

    return now


@dataclass(frozen=True)
class Lap:
    """A stretch of a pass, in the innermost module at work, or else after the last one."""

    module: str | None  # None: before the first one
    after: bool
    seconds: float


@dataclass(frozen=True)
class Pass:
    """One pass that nobody watched, in seconds, and the laps of one that was."""

    seconds: float
    laps: Sequence[Lap]


def module_times(
    networks: Sequence[nn.Module],
    names: Iterable[str],
    example: Example,
    clock: Clock,
    patience: Patience = Patience(),
) -> list[PassTimes]:
    """Undisturbed times, from rounds in which all networks take turns, in eval and inference mode.

    What the networks draw of random numbers is not missed outside.
    """
    names = list(names)
    seen: list[list[Pass]] = [[] for _ in networks]
    with torch.random.fork_rng(), in_eval(*networks), torch.inference_mode():
        start = clock()
        for number in range(patience.rounds):
            if number >= FEWEST and clock() - start > patience.seconds:
                break
            for network, passes in zip(networks, seen, strict=True):
                passes.append(_three_passes(network, names, example, clock))
    return [_undisturbed(passes) for passes in seen]


def _three_passes(network: nn.Module, names: Sequence[str], example: Example, clock: Clock) -> Pass:
    """One to warm the caches after the other networks' turns, one for the total, one watched."""
    network(*example.args, **example.kwargs)
    start = clock()
    network(*example.args, **example.kwargs)
    seconds = clock() - start
    with Stopwatch(network, names, clock) as watch:
        network(*example.args, **example.kwargs)
    return Pass(seconds, watch.laps)


class Stopwatch:
    """Hooks that take the time whenever a module begins or ends; the innermost one is at work."""

    def __init__(self, network: nn.Module, names: Sequence[str], clock: Clock) -> None:
        self.laps: list[Lap] = []
        self._network, self._names, self._clock = network, names, clock
        self._at_work: list[str] = []
        self._left: str | None = None
        self._last = 0.0
        self._hooks = ExitStack()

    def __enter__(self) -> Stopwatch:
        for name in self._names:
            module = self._network.get_submodule(name)
            for handle in (
                module.register_forward_pre_hook(partial(self._enter, name)),
                module.register_forward_hook(partial(self._leave, name)),
            ):
                self._hooks.callback(handle.remove)
        self._last = self._clock()
        return self

    def __exit__(self, *error: object) -> None:
        self._lap()
        self._hooks.close()

    def _enter(self, name: str, module: nn.Module, args: Any) -> None:
        self._lap()
        self._at_work.append(name)

    def _leave(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        self._lap()
        self._left = self._at_work.pop()

    def _lap(self) -> None:
        now = self._clock()
        module = self._at_work[-1] if self._at_work else self._left
        self.laps.append(Lap(module, not self._at_work, now - self._last))
        self._last = now


def _undisturbed(passes: Sequence[Pass]) -> PassTimes:
    """The fastest of each lap. Another program can only add to a time, and on a busy machine no
    pass of some length is left alone, but of every short lap some are."""
    laps = [_fastest(lap) for lap in zip(*_alike(passes), strict=True)]
    within, after = ([lap for lap in laps if lap.after == later] for later in (False, True))
    # Hooks take time as well: of a small network, a whole pass without them is the better witness.
    seconds = min(sum(lap.seconds for lap in laps), *(p.seconds for p in passes))
    return PassTimes(1e3 * seconds, _by_module(within), _by_module(after))


def _by_module(laps: Sequence[Lap]) -> dict[str, float]:
    found: dict[str, float] = {}
    for lap in laps:
        if lap.module is not None:
            found[lap.module] = found.get(lap.module, 0.0) + 1e3 * lap.seconds
    return found


def _alike(passes: Sequence[Pass]) -> list[Sequence[Lap]]:
    """The laps of all passes; only the first of a model that does not always do the same."""
    laps = [p.laps for p in passes]
    orders = {tuple((lap.module, lap.after) for lap in one) for one in laps}
    return laps if len(orders) == 1 else laps[:1]


def _fastest(laps: Sequence[Lap]) -> Lap:
    return min(laps, key=lambda lap: lap.seconds)
