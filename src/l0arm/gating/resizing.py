"""Calls in a forward that are changed before they run, by what a draw leaves of the units.

Sizes may count units, as C of ``reshape(B, N, C)``. C may be the width of the input, which stays,
and count the positions of all heads, of which some are gone. No attribute could be patched. So the
call itself is found again, by its place in the code of the forward, and its sizes are scaled before
it runs. Likewise constants that meet units lose positions, closed experts get scores with which no
router chooses them, an operation that mixes units runs over all of them, and queries with fewer
positions keep the scale of their full width.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from l0arm.gating.calls import (
    NOTED,
    SIZED,
    Change,
    Fill,
    Scale,
    Selection,
    Temper,
    Wide,
    changed,
    is_noting,
)
from l0arm.gating.draw import Draw
from l0arm.gating.group import Dot, Pick, Resize, Route, Widen
from l0arm.gating.layout import Layout

TORCH = str(Path(torch.__file__).parent / "_")[:-1]
CALL = nn.Module._call_impl.__code__
Scales = Mapping[str, tuple[Change, ...]]  # by the place of the call


class Resized:
    """In the place of a module's ``forward``: the same, with sizes scaled and operands selected.

    It is picklable and follows a deep copy of the module.

    Args:
        module: The module.
        scales: What to change, by the place of the call.

    Example:
        >>> class Half(nn.Module):
        ...     def forward(self, x):
        ...         return x.reshape(2, 4)
        >>> module = Half()
        >>> place = "Half.forward+1:30"  # the first line after def, where the call ends
        >>> module.forward = Resized(module, {place: (Scale(1, kept=1, units=2),)})
        >>> module(torch.zeros(4)).shape
        torch.Size([2, 2])
    """

    def __init__(self, module: nn.Module, scales: Scales) -> None:
        self.module, self.scales = module, scales
        self.own = vars(module).get("forward")  # of the module itself, not of its class

    def install(self) -> Resized:
        """Put it into its place."""
        vars(self.module)["forward"] = self
        return self

    def remove(self) -> None:
        """Give the module its own forward again."""
        if self.own is None:
            vars(self.module).pop("forward", None)
        else:
            vars(self.module)["forward"] = self.own

    def remove_from(self, copied: nn.Module) -> None:
        """Give a copy of the module, which shares this forward, one of its own again."""
        if self.own is None:
            vars(copied).pop("forward")
        else:
            vars(copied)["forward"] = copy.deepcopy(self.own, {id(self.module): copied})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        scales = self.scales_now()
        if not scales:
            return self._original(*args, **kwargs)
        run = self._run
        if torch.compiler.is_dynamo_compiling():  # as a decorator it would load the compiler
            run = torch.compiler.disable(run)  # type: ignore[no-untyped-call, unused-ignore]
        return run(scales, args, kwargs)

    def scales_now(self) -> Scales:
        """The scales of this call."""
        return self.scales

    def _run(self, scales: Scales, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        mode = _Scaling(self.module, scales)
        with mode:
            output = self._original(*args, **kwargs)
        missed = [place for place in scales if place not in mode.seen and not is_noting()]
        if missed:
            raise RuntimeError(
                f"the forward of {type(self.module).__name__} does not run as it did when it was "
                f"planned: '{missed[0]}' was not reached, where sizes count units; plan it in the "
                "way and with the code that runs now"
            )
        return output

    def _original(self, *args: Any, **kwargs: Any) -> Any:
        if self.own is not None:
            return self.own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        own = self.own
        return inspect.signature(own or type(self.module).forward.__get__(self.module))


def scales_under(layout: Layout, draw: Draw, module: str | None = None) -> Mapping[str, Scales]:
    """The changes that a draw asks for, by module (of one module, or all) and place."""
    found: dict[str, dict[str, tuple[Change, ...]]] = {}
    for number, group in enumerate(layout.groups):
        kept = draw.units_kept(number)
        parts: list[Resize | Pick | Route | Dot | Widen] = []
        if draw.sliced and kept < group.units:
            parts += [*group.resizes, *group.picks, *group.widens]
            parts += [dot for dot in group.dots if dot.counted]
        closed = draw.units_standing_in(number) if group.routes else ()
        parts += group.routes if closed else ()
        for part in parts:
            if module in (None, part.module):
                places = found.setdefault(part.module, {})
                change: Change
                if isinstance(part, Resize):
                    change = Scale(part.argument, kept, group.units, part.per_unit)
                elif isinstance(part, Dot):
                    change = Temper(part.operand, kept, group.units)
                elif isinstance(part, Route):
                    change = Fill(part.dim, closed)
                elif isinstance(part, Widen):
                    left = draw.units_left(number)
                    change = Wide(part.dim, part.result, part.block, left, group.units)
                else:
                    left = draw.units_left(number)
                    change = Selection(part.operand, part.dim, part.block, left, group.units)
                places[part.place] = (*places.get(part.place, ()), change)
    return found


# Whether arguments are being changed: the operations that this takes are nobody's call.
_CHANGING: ContextVar[bool] = ContextVar("arguments are being changed", default=False)


class _Scaling(TorchFunctionMode):
    """Scales the sizes of calls that the forward of one module makes itself."""

    def __init__(self, module: nn.Module, scales: Scales) -> None:
        super().__init__()
        self.module, self.scales = module, scales
        self.seen: set[str] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        listed = func in SIZED or getattr(func, "__name__", "") in NOTED
        if listed and not _CHANGING.get():
            place, caller = place_of(sys._getframe(1))
            scales = self.scales.get(place)
            # A module inside may have the same forward.
            if scales and caller is not None and caller.f_locals.get("self") is self.module:
                self.seen.add(place)
                token = _CHANGING.set(True)
                try:
                    func, args, kwargs = changed(func, args, kwargs or {}, scales, place)
                finally:
                    _CHANGING.reset(token)
        return func(*args, **(kwargs or {}))


OWN = {function.__code__.co_filename for function in (_Scaling.__init__, changed)}


def place_of(frame: FrameType | None) -> tuple[str, FrameType | None]:
    """The place of a call in a module's forward, and the frame that called this forward.

    The place has every call on the way from the forward, the innermost first, by the line in its
    function and the column where it ends.
    """
    steps = []
    while frame is not None and frame.f_code is not CALL:
        code = frame.f_code
        if not code.co_filename.startswith(TORCH) and code.co_filename not in OWN:
            steps.append(_position(code, frame.f_lasti))
        frame = frame.f_back
    return " < ".join(filter(None, steps)), frame


@lru_cache(maxsize=4096)
def _position(code: CodeType, instruction: int) -> str:
    if code.co_name == "__torch_function__":  # another mode, on its way to the call
        return ""
    _, line, _, column = list(code.co_positions())[instruction // 2]
    return f"{code.co_qualname}+{(line or 0) - code.co_firstlineno}:{column}"
