"""Which draw a piece of the autograd graph was made under: activation checkpointing asks.

Recomputation happens inside backward, long after the pass. Several passes may be waiting for their
backward (two losses summed, a forward for logging in between), so the draw is found by the number
that autograd gives every node: the node that asks was made during exactly one pass.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch.autograd import Variable, _get_sequence_nr  # type: ignore[attr-defined]

from l0arm.gating.draw import Draw

REMEMBERED = 64  # passes that may wait for their backward


@dataclass(eq=False)
class Pass:
    """The nodes numbered ``first <= n < last`` were made under this draw (last: None while on)."""

    draw: Draw
    first: int
    last: int | None = None


class Passes:
    """The latest passes that made a graph."""

    def __init__(self) -> None:
        self._passes: deque[Pass] = deque(maxlen=REMEMBERED)
        self._forgotten = -1  # nodes up to this number belong to passes no longer remembered
        self._outer: tuple[int, Draw] | None = None  # backward under way, and its draw

    def __reduce__(self) -> tuple[type[Passes], tuple[()]]:
        return Passes, ()  # a copy made no graph yet

    def begin(self, draw: Draw) -> Pass:
        """From here on, nodes belong to this draw."""
        self._outer = None
        started = Pass(draw.without_writing(), _get_sequence_nr())
        if len(self._passes) == REMEMBERED:
            self._forgotten = max(self._forgotten, self._passes[0].last or 0)
        self._passes.append(started)
        return started

    def end(self, ended: Pass) -> None:
        """No more nodes for this one; a pass without a graph is not worth remembering."""
        ended.last = _get_sequence_nr()
        if ended.first == ended.last:
            self._passes.remove(ended)

    def recomputed(self, task: int) -> Draw | None:
        """The draw of the node that backward is at; None if the dense model made it."""
        node = torch._C._current_autograd_node()
        number = -1 if node is None else node._sequence_nr()
        for known in reversed(self._passes):
            if known.first <= number and (known.last is None or number < known.last):
                if self._outer is None:
                    Variable._execution_engine.queue_callback(self._finish)
                self._outer = (task, known.draw)
                return known.draw
        if self._outer is not None and self._outer[0] != task:
            return self._outer[1]  # a checkpoint inside a checkpoint: its node is itself recomputed
        if number < self._forgotten:
            raise RuntimeError(
                f"checkpointing recomputes a pass from before the last {REMEMBERED}, whose draw is "
                "no longer known; call backward() sooner"
            )
        return None

    def _finish(self) -> None:
        self._outer = None
