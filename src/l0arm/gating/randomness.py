"""One state of the random number generators for all evaluations of a loss.

Dropout layers of the same width then draw the same noise in every evaluation, and a second pass
that is skipped leaves the stream of random numbers as it would have been. (A layer that two draws
cut to different widths gets different noise: independent of z, so the estimate stays unbiased.)
"""

from __future__ import annotations

from types import TracebackType

import torch


class SharedRandomness:
    """A context to enter once per evaluation: each starts where the first one started.

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
