"""The same random numbers for all evaluations of a step.

Networks draw from the global generators, which all threads of the process share. Setting these back
shows another thread numbers that it has seen already. With several threads they are therefore set
back only for networks that draw from them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

States = list[Tensor]  # of the generators: CPU, and the device of the network


@dataclass
class Noise:
    """What is known of a network."""

    seen: bool = False  # whether an evaluation drew random numbers


class SharedRandomness:
    """A context for each evaluation: all start from the random numbers of the first.

    >>> shared = SharedRandomness(torch.device("cpu"))
    >>> with shared: first = torch.rand(())
    >>> with shared: second = torch.rand(())
    >>> bool(first == second), bool(torch.rand(()) == first)
    (True, False)
    """

    def __init__(self, device: torch.device, noise: Noise | None = None) -> None:
        self._device = None if device.type == "cpu" else device
        self._noise = noise or Noise()
        self._start: States | None = None  # before the first evaluation
        self._after: States | None = None  # before the generators were set back
        self._is_first = True
        self._quiet = False  # whether no thread drew anything during the first evaluation
        self._watch: _Watch | None = None

    def __enter__(self) -> None:
        if self._start is None:
            self._start = self._states()
            return
        self._is_first = False
        if self._noise.seen or threading.active_count() == 1:
            self._set_back()
        elif not self._quiet:  # this network drew something, or another thread
            self._watch = _Watch(self._draws)
            self._watch.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        if self._is_first:
            self._quiet = threading.active_count() > 1 and self._unchanged()
        if self._watch is not None:
            self._watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.stop()

    def stop(self) -> None:
        """No evaluation is under way any more. Can be repeated after an interrupt."""
        if self._watch is not None:
            self._watch.notify = None
            self._watch = None
        if self._after is not None:
            self._restore(self._after)
            self._after = None

    def _draws(self) -> None:
        """The network is about to draw its first random number."""
        self._noise.seen = True
        self._set_back()

    def _set_back(self) -> None:
        assert self._start is not None
        self._after = self._states()
        self._restore(self._start)

    def _unchanged(self) -> bool:
        assert self._start is not None
        pairs = zip(self._start, self._states(), strict=True)
        return all(torch.equal(one, other) for one, other in pairs)

    def _states(self) -> States:
        states = [torch.get_rng_state()]
        if self._device is not None:
            states.append(torch.get_device_module(self._device).get_rng_state())
        return states

    def _restore(self, states: States) -> None:
        torch.set_rng_state(states[0])
        if self._device is not None:
            torch.get_device_module(self._device).set_rng_state(states[1])


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls a function before the first operation of this thread that draws random numbers."""

    def __init__(self, notify: Callable[[], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.notify: Callable[[], None] | None = notify

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        notify = self.notify
        if notify is not None and _draws(func, args, kwargs):
            self.notify = None
            notify()
        return func(*args, **kwargs)


def _draws(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operation draws from a global generator."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if "dropout_p" in names:  # attention is marked as random, whether or not it has dropout
        return bool(given.get("dropout_p", 0.0))
    return given.get("generator") is None
