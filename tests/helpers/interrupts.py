"""A KeyboardInterrupt at a chosen moment: at the n-th line or instruction of the library."""

import contextlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack

import l0arm
from l0arm import Gated

LIBRARY = str(Path(l0arm.__file__).parent)


class Interrupter:
    """A trace function that raises at event number ``at``. Events are counted from 0."""

    def __init__(self, at: int, kind: str = "line", skip: tuple[str, ...] = ()) -> None:
        self.at, self.kind, self.skip = at, kind, skip
        self.seen = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> "Interrupter | None":
        if not _traced(frame) or frame.f_code.co_qualname in self.skip:
            return None
        frame.f_trace_opcodes = self.kind == "opcode"
        if event == self.kind:
            self.seen += 1
            if self.seen > self.at:
                raise KeyboardInterrupt
        return self


def _traced(frame: FrameType) -> bool:
    """The library's own lines, and those of the contexts that it enters and leaves."""
    if frame.f_code.co_filename == contextlib.__file__ and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(LIBRARY)


def interrupt(
    at: int, run: Callable[[], object], kind: str = "line", skip: tuple[str, ...] = ()
) -> KeyboardInterrupt | None:
    """Run with an interrupt at an event. The exception, or None if the run ended before."""
    before = sys.gettrace()
    try:
        sys.settrace(Interrupter(at, kind, skip))
        run()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.settrace(before)
    return None


def interrupt_everywhere(
    run: Callable[[], object],
    check: Callable[[], object],
    kind: str = "line",
    skip: tuple[str, ...] = (),
) -> int:
    """Run again and again, interrupted one event later each time, until the end of the run.

    ``check`` is called while the exception lives: its traceback holds the interrupted frames.
    Returns the number of interrupts.
    """
    for at in itertools.count():
        error = interrupt(at, run, kind, skip)
        if error is None:
            return at
        check()
    raise AssertionError


class Untouched:
    """The tensors of a model, their values, and what it computes."""

    def __init__(self, gated: Gated, x: Tensor, *, buffers: bool = True) -> None:
        self.gated, self.x = gated, x
        named = [*gated.model.named_parameters(), *(gated.model.named_buffers() if buffers else ())]
        self.tensors = {name: (tensor, tensor.detach().clone()) for name, tensor in named}
        self.training = gated.training
        self.output = self.evaluated()
        self.dense = self.evaluated(dense=True)

    def evaluated(self, *, dense: bool = False) -> Tensor:
        with torch.no_grad():
            output: Tensor = (self.gated.eval().model if dense else self.gated.eval())(self.x)
        self.gated.train(self.training)
        return output

    def check_state(self) -> None:
        engine, model = self.gated.engine, self.gated.model
        assert engine.current is None
        assert not engine.entered
        assert all(
            key in home for h in engine._hooks for home, key in zip(h.homes, h.keys, strict=True)
        )
        assert not engine.turn.mine
        assert torch.is_grad_enabled()
        assert not _get_current_function_mode_stack()
        now = dict([*model.named_parameters(), *model.named_buffers()])
        for name, (tensor, values) in self.tensors.items():
            assert now[name] is tensor
            assert torch.equal(tensor, values)

    def check(self) -> None:
        self.check_state()
        assert torch.equal(self.evaluated(), self.output)
        assert torch.equal(self.evaluated(dense=True), self.dense)
