"""What the evaluations of one step have in common is computed once.

Antithetic draws agree more and more as gates polarise (the paper's future work, Sec. 6). Where they
agree from the input up to some layer, the second evaluation would repeat the first. So a pure
operation that receives the same inputs (by identity and version) as in the first evaluation returns
the result of then. The first operation that differs, or is not known to be pure, ends the sharing
of what depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    handle_torch_function,
    has_torch_function,
)

from l0arm.contracts import Gates
from l0arm.gating.draw import Draw
from l0arm.gating.layout import Layout

PURE: set[Callable[..., Any]] = {
    *(F.linear, F.conv1d, F.conv2d, F.conv3d, F.batch_norm, F.layer_norm, F.group_norm),
    *(F.relu, F.gelu, F.silu, F.elu, F.leaky_relu, F.hardswish, F.hardsigmoid, F.softmax),
    *(F.log_softmax, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.cross_entropy, F.pad),
    *(torch.relu, torch.sigmoid, torch.tanh, torch.flatten, torch.matmul, torch.mean, torch.cat),
    *(Tensor.relu, Tensor.sigmoid, Tensor.tanh, Tensor.flatten, Tensor.matmul, Tensor.mean),
    *(Tensor.view, Tensor.reshape, Tensor.permute, Tensor.transpose, Tensor.contiguous),
    *(Tensor.add, Tensor.sub, Tensor.mul, Tensor.__add__, Tensor.__radd__, Tensor.__sub__),
    *(Tensor.__mul__, Tensor.__rmul__, Tensor.__matmul__, Tensor.index_select, Tensor.to),
    Tensor.narrow,
}

WORTHWHILE = 0.5  # share only if the first group's draws agree more often than this,
REPEATED = 0.1  # and if more steps than this share need a second evaluation at all
MEMORY = 0.1  # weight of the latest step in these two shares
# Nanoseconds, for an estimate that is the same in every run: on one core, of a multiplication and
# addition in a product, of an entry of a result, and of a look at one operation.
PRODUCT, ENTRY, LOOK = 0.02, 0.5, 15e3
AGAIN = 64  # steps after which sharing is tried again


class Sharing(TorchFunctionMode):
    """A cache of pure operations. The first evaluation fills it, later ones read it.

    >>> x, sharing = torch.rand(3), Sharing()
    >>> with sharing: first = torch.relu(x)
    >>> sharing.replay()
    >>> with sharing: torch.relu(x) is first
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0  # operations of the first evaluation that were looked at
        self.saved = 0.0  # nanoseconds that were not spent again
        self._results: dict[object, tuple[Tensor, int, object]] = {}
        self._replaying = False
        self._stopped = False

    def replay(self) -> None:
        """From now on, look results up and keep no new ones."""
        self._replaying = True

    def stop(self) -> None:
        """Share nothing from now on. Can be repeated after an interrupt."""
        self._stopped = True
        self._results.clear()
        while self in _active_modes():
            super().__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        if self in _active_modes():  # an interrupt inside torch may have lost it
            super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._stopped or func not in PURE:
            return func(*args, **kwargs)
        key = _key(func, args, kwargs)
        if self._replaying:
            known = self._results.get(key)
            if known is not None and known[0]._version == known[1]:
                self.saved += _nanoseconds(known[0], args)
                return known[0]
            return func(*args, **kwargs)
        self.looks += 1
        result = func(*args, **kwargs)
        if key is not None and isinstance(result, Tensor):
            # The arguments are kept too: while they live, nothing else can have their identity.
            self._results[key] = (result, result._version, (args, kwargs))
        return result


def _nanoseconds(result: Tensor, args: Sequence[Any]) -> float:
    """An estimate of the time that an operation took."""
    weight = args[1] if len(args) > 1 else None
    if not isinstance(weight, Tensor) or weight.dim() < 2 or not len(weight):
        return ENTRY * result.numel()
    return result.numel() * (ENTRY + PRODUCT * (weight.numel() // len(weight)))


class Agreement:
    """Whether sharing is worth it: there are second evaluations, and draws agree at the start.

    The first step computes the probability prod |1 - 2 pi| that both draws agree on the first
    group. Later steps go by the draws seen, which are on the host in any case. Where all gates are
    decided, both draws are equal and there is no second evaluation. In a small network, to look at
    every operation takes longer than to repeat some. Results do not depend on it.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._share: float | None = None  # of second evaluations: draws agree on the first group
        self._repeated = 1.0  # share of steps with a second evaluation
        self._saved: float | None = None  # nanoseconds in a second evaluation
        self._looks = 0  # operations of an evaluation
        self._steps = 0

    def worth_sharing(self, gates: Gates, *, asked: bool = False) -> bool:
        """Whether there often is a second evaluation, and it often starts as the first.

        ``asked``: the user wants to share, so what it saves is not compared with what it takes.
        """
        if self._share is None:
            pi = gates.probs.detach()[self._layout.span(0)]
            self._share = (pi * 2 - 1).abs().prod().item()
        if self._repeated <= REPEATED or self._share <= WORTHWHILE:
            return False
        if asked or self._saved is None or self._steps % AGAIN == 0:
            return True
        return self._repeated * self._saved > (1.0 + self._repeated) * self._looks * LOOK

    def note(self, first: Draw, other: Draw) -> None:
        """Two draws of one step."""
        agree = 1.0 if other.agrees(first, 0) else 0.0
        self._share = agree if self._share is None else self._share + MEMORY * (agree - self._share)

    def end_step(self, evaluations: int, sharing: Sharing | None = None) -> None:
        """A step is over, in which operations were shared or not."""
        self._steps += 1
        self._repeated += MEMORY * ((1.0 if evaluations > 1 else 0.0) - self._repeated)
        if sharing is not None and evaluations > 1:
            saved = sharing.saved / (evaluations - 1)
            before = saved if self._saved is None else self._saved
            self._saved = before + MEMORY * (saved - before)
            self._looks = sharing.looks


def pure(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Mark a function of tensors as one pure operation, which is shared as a whole."""

    @wraps(function)
    def operation(*args: Any) -> Tensor:
        if has_torch_function(args):
            result: Tensor = handle_torch_function(operation, args, *args)
            return result
        return function(*args)

    PURE.add(operation)
    return operation


def _active_modes() -> list[TorchFunctionMode]:
    modes: list[TorchFunctionMode] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return modes


def _key(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> object:
    """Equal for calls that must give equal results. None if an argument cannot be compared."""
    if func is F.batch_norm and len(args) > 5 and args[5]:
        args = (args[0], *args[3:])  # in training its output does not depend on running statistics
    try:
        return (func, _token(args), _token(sorted(kwargs.items())))
    except TypeError:
        return None


def _token(value: Any) -> object:
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, tuple | list):
        return tuple(_token(item) for item in value)
    if isinstance(value, slice):
        return "slice", value.start, value.stop, value.step
    hash(value)
    return value
