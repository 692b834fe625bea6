"""The same random numbers for all evaluations of a step.

Random numbers come from the global generators, which all threads of the process share. They are
set back only if the network draws from them: another thread would otherwise see its numbers twice.
"""

from __future__ import annotations

from types import TracebackType

import torch


class SharedRandomness:
    """A context for each evaluation: all start from the random numbers of the first.

    >>> shared = SharedRandomness(torch.device("cpu"))
    >>> with shared: first = torch.rand(())
    >>> with shared: second = torch.rand(())
    >>> bool(first == second), bool(torch.rand(()) == first)
    (True, False)
    """

    def __init__(self, device: torch.device) -> None:
        self._device = None if device.type == "cpu" else device
        self._start: list[torch.Tensor] | None = None
        self._after: list[torch.Tensor] | None = None

    def __enter__(self) -> None:
        if self._start is None:
            self._start = self._state()
        else:
            self._after = self._state()
            self._restore(self._start)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._after is not None:
            self._restore(self._after)

    def _state(self) -> list[torch.Tensor]:
        states = [torch.get_rng_state()]
        if self._device is not None:
            states.append(torch.get_device_module(self._device).get_rng_state())
        return states

    def _restore(self, states: list[torch.Tensor]) -> None:
        torch.set_rng_state(states[0])
        if self._device is not None:
            torch.get_device_module(self._device).set_rng_state(states[1])
