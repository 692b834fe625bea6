"""How long networks take: whole forward passes, and the modules within them.

Networks take turns, so that other programs on the machine disturb all of them alike.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor, nn

from l0arm.equality.example import Example, in_eval

Clock = Callable[[], float]  # seconds
FEWEST = 3  # rounds, however slow the networks are


@dataclass(frozen=True)
class Latency:
    """Milliseconds of a forward pass.

    Attributes:
        median: The median over the rounds.
        low: The first quartile.
        high: The third quartile.

    Example:
        >>> Latency.of([1.0, 2.0, 3.0, 4.0, 5.0])
        Latency(median=3.0, low=1.5, high=4.5)
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, milliseconds: list[float]) -> Latency:
        """The median and quartiles of measured times."""
        low, _, high = quantiles(milliseconds, n=4)
        return cls(median(milliseconds), low, high)


def latency(
    models: Mapping[str, nn.Module], x: Tensor, *, rounds: int = 20, calls: int = 5
) -> dict[str, Latency]:
    """Measure how long forward passes take, in eval mode and without gradients.

    Every round times every model, so that a noisy machine disturbs all alike.

    Args:
        models: The models, by name.
        x: The input of all of them.
        rounds: How often each model is timed.
        calls: Forward passes in each timing; their mean counts.

    Returns:
        The latency of each model in milliseconds, by name.

    Example:
        >>> models = {"small": nn.Linear(4, 2), "large": nn.Linear(4, 2000)}
        >>> found = latency(models, torch.zeros(1, 4), rounds=2, calls=1)
        >>> found["small"].median > 0
        True
    """
    times: dict[str, list[float]] = {name: [] for name in models}
    with in_eval(*models.values()), torch.inference_mode():
        for model in models.values():
            model(x)
        for _ in range(rounds):
            for name, model in models.items():
                start = time.perf_counter()
                for _ in range(calls):
                    model(x)
                times[name].append(1e3 * (time.perf_counter() - start) / calls)
    return {name: Latency.of(measured) for name, measured in times.items()}


@dataclass(frozen=True)
class PassTimes:
    """Milliseconds of one forward pass, in total and by module.

    ``total`` is measured without hooks, which take time themselves. ``modules`` has the time inside
    each watched module that the pass calls. ``after`` has the time from the end of a module to the
    start of the next one; most of it is work on the output of the former.
    """

    total: float
    modules: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(frozen=True)
class Patience:
    """The limits of a measurement: a number of rounds, and seconds after which none starts."""

    rounds: int = 30
    seconds: float = 20.0


def wall_clock(device: torch.device) -> Clock:
    """A clock in seconds; reading it waits until an asynchronous device has finished its work."""
    if device.type == "cpu":
        return time.perf_counter
    synchronise = torch.get_device_module(device).synchronize

    def now() -> float:
        synchronise(device)
        return time.perf_counter()

    return now


@dataclass(frozen=True)
class Lap:
    """A part of a pass: inside a module (the innermost one), or after it if none is running."""

    module: str | None  # None: before the first one
    after: bool
    seconds: float


@dataclass(frozen=True)
class Pass:
    """The seconds of a pass without hooks, and the laps of one with them."""

    seconds: float
    laps: Sequence[Lap]


def module_times(
    networks: Sequence[nn.Module],
    names: Iterable[str],
    example: Example,
    clock: Clock,
    patience: Patience = Patience(),
) -> list[PassTimes]:
    """The times of the named modules in each network, in eval and inference mode.

    The state of the random number generators is restored.
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
    """One pass to warm the caches, one for the total, one with hooks."""
    network(*example.args, **example.kwargs)
    start = clock()
    network(*example.args, **example.kwargs)
    seconds = clock() - start
    with Stopwatch(network, names, clock) as watch:
        network(*example.args, **example.kwargs)
    return Pass(seconds, watch.laps)


class Stopwatch:
    """Hooks that record a lap whenever a module starts or ends."""

    def __init__(self, network: nn.Module, names: Sequence[str], clock: Clock) -> None:
        self.laps: list[Lap] = []
        self._network, self._names, self._clock = network, names, clock
        self._running: list[str] = []  # the innermost module is the last
        self._ended: str | None = None
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
        self._running.append(name)

    def _leave(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        self._lap()
        self._ended = self._running.pop()

    def _lap(self) -> None:
        now = self._clock()
        module = self._running[-1] if self._running else self._ended
        self.laps.append(Lap(module, not self._running, now - self._last))
        self._last = now


def _undisturbed(passes: Sequence[Pass]) -> PassTimes:
    """The fastest of each lap.

    Another program can only add time. On a busy machine every pass of some length is disturbed,
    but of every short lap some are not.
    """
    laps_of = [p.laps for p in passes]
    orders = {tuple((lap.module, lap.after) for lap in laps) for laps in laps_of}
    if len(orders) > 1:  # the model does not always call the same modules: the first pass counts
        laps_of = laps_of[:1]
    laps = [min(lap, key=lambda one: one.seconds) for lap in zip(*laps_of, strict=True)]
    within, after = ([lap for lap in laps if lap.after == later] for later in (False, True))
    # Hooks take time as well: for a small network, a whole pass without them is more accurate.
    seconds = min(sum(lap.seconds for lap in laps), *(p.seconds for p in passes))
    return PassTimes(1e3 * seconds, _by_module(within), _by_module(after))


def _by_module(laps: Sequence[Lap]) -> dict[str, float]:
    found: dict[str, float] = {}
    for lap in laps:
        if lap.module is not None:
            found[lap.module] = found.get(lap.module, 0.0) + 1e3 * lap.seconds
    return found


def processor_name() -> str:
    """The name of the processor, such as "AMD EPYC 7B13". Sums may differ between two of them."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
