"""Activation checkpointing: which draw a recomputation inside backward belongs to.

Backward recomputes a pass when its draw is over. The draw is found again by the sequence number of
the autograd node that asks. Every thread counts its nodes itself.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch.autograd import Variable, _get_sequence_nr  # type: ignore[attr-defined]

from l0arm.gating.draw import Draw
from l0arm.gating.threads import THIS, Identity

REMEMBERED = 64  # passes that may wait for their backward


@dataclass(eq=False)
class Pass:
    """Autograd nodes of one thread with numbers ``first <= n < last`` were made under this draw."""

    draw: Draw
    thread: Identity
    first: int
    graph: bool  # whether gradients were recorded when it began
    last: int | None = None


class Passes:
    """The latest passes that made a graph."""

    def __init__(self) -> None:
        self._passes: deque[Pass] = deque(maxlen=REMEMBERED)
        # Of each thread: the last node of passes no longer remembered; the backward under way.
        self._forgotten: WeakKeyDictionary[Identity, int] = WeakKeyDictionary()
        self._outer: WeakKeyDictionary[Identity, tuple[int, Pass]] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[Passes], tuple[()]]:
        return Passes, ()  # a copy has made no graph yet

    def begin(self, draw: Draw) -> Pass:
        """New nodes of this thread belong to this draw from here on."""
        this = THIS.thread
        for thread, (_, known) in tuple(self._outer.items()) if self._outer else ():
            if known.thread is this:  # that backward was interrupted
                del self._outer[thread]
        started = Pass(draw.without_writing(), this, _get_sequence_nr(), torch.is_grad_enabled())
        if len(self._passes) == REMEMBERED:
            # A checkpoint of torch 2.10 numbers a node of its own also without gradients.
            useless = (each for each in self._passes if each.last is not None and not each.graph)
            oldest = next(useless, self._passes[0])
            last = max(self._forgotten.get(oldest.thread, -1), oldest.last or 0)
            self._forgotten[oldest.thread] = last
            self._passes.remove(oldest)
        self._passes.append(started)
        return started

    def end(self, ended: Pass) -> None:
        """The pass is over. One that made no graph is forgotten."""
        ended.last = _get_sequence_nr()
        if ended.first == ended.last:
            self._passes.remove(ended)

    def end_all(self) -> None:
        """End the passes of this thread that an interrupt left open."""
        for known in tuple(self._passes):
            if known.last is None and known.thread is THIS.thread:
                self.end(known)

    def maker(self) -> Identity | None:
        """The thread that made the node that backward is at. None if the dense model made it."""
        known = self._of_node(_number())
        return None if known is None else known.thread

    def recomputed(self, task: int) -> Draw | None:
        """The draw of the node that backward is at. None if the dense model made it."""
        number, here = _number(), THIS.thread
        known, outer = self._of_node(number), self._outer.get(here)
        if known is not None:
            if outer is None:
                Variable._execution_engine.queue_callback(partial(self._finish, here))
            self._outer[here] = (task, known)
            return known.draw
        if outer is not None and outer[0] != task:
            return outer[1].draw  # a checkpoint inside a checkpoint: its node is itself recomputed
        forgotten = self._forgotten.values() if here.foreign else [self._forgotten.get(here, -1)]
        if any(number < last for last in forgotten):
            raise RuntimeError(
                f"checkpointing recomputes a pass from before the last {REMEMBERED}, whose draw is "
                "no longer known; call backward() sooner"
            )
        return None

    def _finish(self, thread: Identity) -> None:
        self._outer.pop(thread, None)

    def _of_node(self, number: int) -> Pass | None:
        """The pass that made a node. Only the thread that made it can be sure which one it is."""
        found = [
            known
            for known in reversed(tuple(self._passes))
            if known.first <= number and (known.last is None or number < known.last)
        ]
        own = [known for known in found if known.thread is THIS.thread]
        if own:
            return own[0]
        if found and (not THIS.thread.foreign or len({known.thread for known in found}) > 1):
            raise RuntimeError(
                "checkpointing recomputes a pass, but several threads made graphs with this gated "
                "model and it is not known whose pass this is; call backward() in the thread that "
                "computed the loss, and evaluate under torch.no_grad() in other threads"
            )
        return found[0] if found else None


def _number() -> int:
    node = torch._C._current_autograd_node()
    return -1 if node is None else int(node._sequence_nr())
