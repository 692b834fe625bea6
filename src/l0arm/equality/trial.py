"""Does dropping equal zeroing? Asked of a copy of the model, in float64 where it can be.

Tried is all that happens to a unit later: sliced execution in eval and train mode, and the small
network that compaction makes, on inputs of several scales, since what saturates hides differences.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from l0arm.equality.difference import difference, holds_numbers
from l0arm.equality.evidence import unseen
from l0arm.equality.example import Example
from l0arm.equality.inputs import at_scale, has_floats
from l0arm.equality.scratch import Mode, Outputs, Scratch, first_line
from l0arm.equality.shaking import lively, shake
from l0arm.gating import Group
from l0arm.gating.layout import Layout, named_tensors, resolve

SEED = 0x10A2
SCALES = (1 / 16, 1 / 256)  # beside that of the example
MIXES = "dropping its units gives other values than zeroing them: the forward mixes or counts them"
COUNTS = (
    "compaction would change the values: the forward uses an attribute that counts its units, such "
    "as out_features"
)
BLIND = "no output holds finite numbers other than whole ones, so that nothing shows a difference"


class _Case(NamedTuple):
    """One comparison: gates, input, mode, and whether the small network is asked too."""

    z: Tensor
    x: Example
    mode: Mode
    small: bool


class Trial:
    """A scratch model with weights shaken, so that zeros in a fresh network hide nothing."""

    def __init__(
        self,
        scratch: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        outputs: Collection[str],
    ) -> None:
        self.model = scratch
        self.random = torch.Generator().manual_seed(SEED)
        example = lively(Example(tuple(args), dict(kwargs), tuple(outputs)), self.random)
        self.scratch = self._shaken(example)
        tried = [(self.scratch.example, self.scratch.first), *map(self._at, SCALES)]
        self.inputs = [x for x, _ in tried]
        self.blind = not any(holds_numbers(y) for _, y in tried)
        self.trains = self.scratch.refusal(self.inputs[0], "train") is None

    def _shaken(self, example: Example) -> Scratch:
        """Where the model gives no number with shaken weights, its own must do."""
        own = {key: tensor.clone() for key, tensor in named_tensors(self.model).items()}
        shake(self.model, self.random)
        try:
            scratch = Scratch(self.model, example)
            if holds_numbers(scratch.first):
                return scratch
        except ValueError:  # it checks its values, and does not run
            pass
        for key, tensor in named_tensors(self.model).items():
            tensor.data = own[key]
        return Scratch(self.model, example)

    def _at(self, scale: float) -> tuple[Example, Outputs]:
        """Inputs like the example of another scale; the example itself if the model refuses."""
        example = self.scratch.example
        if has_floats(self.model, example):
            likely = at_scale(self.model, example, scale, self.random)
            with suppress(Exception):  # whatever a forward raises
                return likely, self.scratch.dense(likely)
        return example, self.scratch.first

    def agrees(self, groups: Sequence[Group]) -> bool:
        """Whether the outputs under dropping and zeroing are equal, wherever it is tried."""
        return self.fault(groups) is None

    def fault(self, groups: Sequence[Group]) -> str | None:
        """What goes wrong when units of these groups are dropped; None if nothing does."""
        if not any(group.drops for group in groups):
            return None
        if self.blind:
            return BLIND
        layout = resolve(self.model, groups)
        faults = (self._fault(layout, case) for case in self._cases(layout))
        return next((fault for fault in faults if fault is not None), None)

    def unseen(self, groups: Sequence[Group]) -> list[Group]:
        """Those whose closing moves no output visibly: nothing can be tried with them."""
        layout = resolve(self.model, groups)
        cases = ((case.z, case.x) for case in self._cases(layout) if case.mode == "eval")
        hidden = unseen(self.scratch, layout, cases)
        return [group for number, group in enumerate(groups) if number in hidden]

    def _cases(self, layout: Layout) -> Iterator[_Case]:
        """Every mask at another scale; in train mode at that of the example."""
        masks = list(self._masks(layout))
        for place, (z, x) in enumerate(zip(masks, self.inputs, strict=True)):
            yield _Case(z, x, "eval", small=place == 1 or not self.trains)
        if self.trains:
            yield _Case(masks[1], self.inputs[0], "train", small=True)

    def _masks(self, layout: Layout) -> Iterator[Tensor]:
        """In every group: one unit closed, half of them, all but one."""
        for kind in ("one", "half", "rest"):
            z = torch.ones(layout.gates, device=next(self.model.parameters()).device)
            for number, group in enumerate(layout.groups):
                z[layout.span(number)] = _mask(kind, group).to(z)
            yield z

    def _fault(self, layout: Layout, case: _Case) -> str | None:
        z, x, mode, _ = case
        zeroed = self.scratch.zeroed(layout, z, x, mode)
        told = "in train mode " if mode == "train" else ""
        running = self.model
        try:
            if not self._same(self.scratch.sliced(layout, z, x, mode), zeroed):
                return self._unless_random(layout, case, told + MIXES)
            if case.small:
                running = self.scratch.small(layout, z)
                if not self._same(self.scratch.run(running, x, mode), zeroed):
                    return self._unless_random(layout, case, told + COUNTS)
        except Exception as error:  # sizes that do not fit raise anything
            return f"{told}with fewer units {_place(error, running)}fails: {first_line(error)}"
        return None

    def _unless_random(self, layout: Layout, case: _Case, fault: str) -> str | None:
        """Noise that only training adds is no fault, even if it cannot be compared."""
        random = case.mode == "train" and self.scratch.is_random(layout, case.z)
        return None if random else fault

    def _same(self, one: Outputs, other: Outputs) -> bool:
        return difference(one, other) <= self.scratch.tolerance


def _mask(kind: str, group: Group) -> Tensor:
    """The same for a group whatever others there are."""
    random = torch.Generator().manual_seed(SEED + zlib.crc32(f"{kind} {group.name}".encode()))
    order = torch.randperm(group.units, generator=random)
    closed = {"one": 1, "half": group.units // 2, "rest": group.units - 1}[kind]
    z = torch.ones(group.units)
    z[order[:closed]] = 0
    return z


def _place(error: Exception, model: nn.Module) -> str:
    """The innermost module of the model that an error passed through."""
    names = {id(module): name for name, module in model.named_modules()}
    found = ""
    frame: TracebackType | None = error.__traceback__
    while frame is not None:
        found = names.get(id(frame.tb_frame.f_locals.get("self")), found)
        frame = frame.tb_next
    return f"'{found}' " if found else "the forward "
