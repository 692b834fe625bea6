"""The evaluation under way: the draw in force, the thread it belongs to, what to put back after it.

One thread at a time has a draw in force or tensors installed (threads.py). An interrupt at any
point of ``Evaluations.alone`` leaves nothing in force, and every module with its own tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

from l0arm.gating.draw import Draw
from l0arm.gating.recomputation import Pass, Passes
from l0arm.gating.threads import THIS, Turn

T = TypeVar("T")


class Call(Protocol):
    """A module whose own tensors are replaced while it is called."""

    name: str

    @property
    def installed(self) -> bool:
        """Whether the tensors are replaced now."""

    def restore(self) -> None:
        """Put the module's own tensors back."""


class Evaluations:
    """What is in force in one model. All of it belongs to the thread that has the turn."""

    def __init__(self) -> None:
        self.turn = Turn()
        self.exclusive = False  # whether ``alone`` has the turn
        self.outermost: Call | None = None  # the call that has the turn, outside of ``alone``
        self.current: Draw | None = None
        # For what is known of them: the latest draw, and the latest that repeated an earlier one.
        self.recent: tuple[Draw, ...] = ()
        self.entered: list[Call] = []  # modules that have cut tensors installed
        self.calls = 0  # calls of modules that a draw changed
        self.hushed = False  # whether the hooks are off for the length of a call
        self.passes = Passes()  # for recomputation

    def __getstate__(self) -> dict[str, Any]:
        """For copies: nothing is in force in them."""
        self.check_dense()
        return {**vars(self), "current": None, "recent": (), "exclusive": False, "outermost": None}

    def check_dense(self) -> None:
        """Refuse to copy tensors that are cut for the length of a call."""
        if self.entered or self.hushed:
            inside = f"one of its modules ('{self.entered[-1].name}')" if self.entered else "it"
            raise RuntimeError(
                f"a gated model cannot be copied, pickled or compacted inside a call of {inside}, "
                "whose tensors are cut or whose hooks are off for the length of the call; do it "
                "between two calls"
            )

    def listen(self) -> None:
        """Put the hooks back that are off for the length of a call."""
        self.hushed = False

    def remember(self, draw: Draw) -> None:
        """A draw that later ones may repeat, as they do once the gates are decided."""
        usual = self.recent[-1:] if not draw.repeats and self.recent else ()
        self.recent = (draw, *usual) if usual and usual[0].repeats else (draw,)

    def evaluating(self, draw: Draw) -> Evaluation:
        """A context: everything that the model computes inside uses this draw."""
        return Evaluation(self, draw)

    def alone(self, call: Callable[[], T]) -> T:
        """``call()`` while no other thread uses the model. Nothing is in force afterwards.

        An interrupt may hit the cleanup itself. Here this runs it again, as ``finally`` would not.
        """
        if self.inside:
            return call()
        with_graph = torch.is_grad_enabled()
        try:
            self.begin()
            self.exclusive = True
            result = call()
            self.end()
            return result
        except BaseException:
            torch._C._set_grad_enabled(with_graph)  # an interrupt may hit the end of no_grad, too
            self.recover()
            raise

    @property
    def inside(self) -> bool:
        """Whether this thread uses the model already: in a pass, in ``alone`` or in backward."""
        return self.turn.mine and (
            self.current is not None or self.exclusive or torch._C._current_graph_task_id() != -1
        )

    def begin(self) -> None:
        """Wait until no other thread uses the model."""
        if self.turn.mine:
            self.recover()  # from an interrupt outside of ``alone``, such as in backward
        self.turn.take(lambda: self.calls)

    def end(self) -> None:
        """No draw is in force, all tensors are the model's own, and another thread may go on."""
        if self.turn.mine:
            self.current, self.exclusive, self.outermost = None, False, None
            self.restore(0)
            self.turn.give_back()

    def recover(self) -> None:
        """``end``, wherever an interrupt came."""
        if self.turn.mine:
            self.passes.end_all()
        self.end()
        self.turn.give_back()  # in case it was taken and not recorded yet

    def restore(self, entered: int) -> None:
        """Put tensors back, until so many modules have cut tensors.

        The others are not called any more: torch calls no hook after a KeyboardInterrupt.
        """
        if self.hushed:
            self.listen()
        while len(self.entered) > entered:
            self.entered[-1].restore()

    def draw_now(self) -> Draw | None:
        """The current draw. Inside backward (recomputation): that of the recomputed pass."""
        task = torch._C._current_graph_task_id()
        if task != -1:
            return self.passes.recomputed(task)
        return self.current if self.turn.owner is THIS.thread else None

    def begin_call(self, call: Call) -> None:
        """A module is called outside of a pass: by the dense model, or by a recomputation."""
        if torch.compiler.is_compiling():
            return
        owner = self.turn.owner
        if owner is not None and THIS.thread.foreign and self.passes.maker() is owner:
            return  # a thread of autograd runs the backward that the owner waits for
        self.begin()
        self.outermost = call

    def restart_call(self, call: Call) -> None:
        """A call found cut tensors: an interrupted backward left them, or a module calls itself."""
        if self.current is not None:
            raise RuntimeError(
                f"the module '{call.name}' is called inside its own forward, where its tensors are "
                "cut already; leave its units out of the groups"
            )
        if call.installed or torch._C._current_graph_task_id() == -1:
            self.recover()
            self.begin_call(call)


class Evaluation:
    """A draw in force, as a context."""

    def __init__(self, evaluations: Evaluations, draw: Draw) -> None:
        self._all, self._draw = evaluations, draw
        self._nested = False
        self._before: tuple[Draw | None, int] = (None, 0)  # draw in force, modules entered

    def __enter__(self) -> Draw:
        all_ = self._all
        self._nested = all_.inside
        if self._nested:
            self._before = all_.current, len(all_.entered)
        try:
            if not self._nested:
                all_.begin()
            if all_.hushed:  # another draw, inside a call of one that changes nothing
                all_.listen()
            self._pass: Pass = all_.passes.begin(self._draw)
            all_.current = self._draw
            return self._draw
        except BaseException:
            self._undo()
            raise

    def __exit__(self, *error: object) -> None:
        self._all.current = self._before[0]  # first of all: an interrupt may follow
        try:
            self._all.restore(self._before[1])
            self._all.passes.end(self._pass)
            if not self._nested:
                self._all.end()
        except BaseException:
            self._undo()
            raise

    def _undo(self) -> None:
        if self._nested:
            self._all.current = self._before[0]
        else:
            self._all.recover()
