"""What the evaluations of a step have in common is computed once (the paper's future work, Sec. 6).

Antithetic draws agree more and more as gates polarise. Where they agree from the input up to some
layer, the second pass would compute what the first one did. Here an operation that receives the
same inputs (identity and version) as in the first evaluation returns what it returned then.

Only operations known to be pure are shared; the first one that differs, or is not known, ends the
sharing of what depends on it. An in-place change of a result raises its version, which voids it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

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
}

WORTHWHILE = 0.5  # share only if the first group's draws agree more often than this


class Sharing(TorchFunctionMode):
    """A memo of pure operations: filled by the first evaluation, read by those after it.

    >>> x, sharing = torch.rand(3), Sharing()
    >>> with sharing: first = torch.relu(x)
    >>> sharing.replay()
    >>> with sharing: torch.relu(x) is first
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self._results: dict[object, tuple[Tensor, int, object]] = {}
        self._replaying = False

    def replay(self) -> None:
        """From now on results are looked up, and no new ones kept."""
        self._replaying = True

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func not in PURE:
            return func(*args, **kwargs)
        key = _key(func, args, kwargs)
        if self._replaying:
            known = self._results.get(key)
            if known is not None and known[0]._version == known[1]:
                return known[0]
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if key is not None and isinstance(result, Tensor):
            # The arguments are kept too: while they live, nothing else can have their identity.
            self._results[key] = (result, result._version, (args, kwargs))
        return result


def worth_sharing(layout: Layout, probs: Tensor) -> bool:
    """Whether both draws agree on the whole first group often enough: prod |1 - 2 pi|."""
    pi = probs.detach()[layout.span(0)]
    return (pi * 2 - 1).abs().prod().item() > WORTHWHILE


def pure(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Mark a function of tensors as one pure operation, to be shared as a whole."""

    @wraps(function)
    def operation(*args: Any) -> Tensor:
        if has_torch_function(args):
            result: Tensor = handle_torch_function(operation, args, *args)
            return result
        return function(*args)

    PURE.add(operation)
    return operation


def _key(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> object:
    """Equal only for calls that must give equal results; None for arguments that are not known."""
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
