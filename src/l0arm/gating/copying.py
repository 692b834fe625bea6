"""Copies of a model, whatever it has kept from its last run."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Model = TypeVar("Model", bound=nn.Module)
BOOKKEEPING = frozenset(vars(nn.Module())) - {"training"}  # of torch: tensors, children, hooks


def copied(model: Model, memo: dict[int, Any] | None = None) -> Model:
    """A deep copy; activations that the model kept are copied without their graph.

    ``memo`` has, by id, what the copy shares with the original. ValueError names an attribute that
    cannot be copied (a lock, an open file).

    >>> model = nn.Linear(2, 2)
    >>> model.kept = model.weight * 2
    >>> copied(model).kept.requires_grad
    False
    """
    memo = {} if memo is None else memo
    shared = dict(memo)  # deepcopy writes into its own
    try:
        with _Detaching():
            return copy.deepcopy(model, memo)
    except Exception as error:  # anything may have a __deepcopy__ of its own
        raise ValueError(
            f"{type(model).__name__} cannot be copied because of {_culprit(model, shared)}: "
            f"{type(error).__name__}: {str(error)[:200]}; take it out of the model, or give it a "
            "__deepcopy__"
        ) from None


class _Detaching(TorchFunctionMode):
    """torch refuses to copy a tensor with a graph; its values will do."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))


def _culprit(model: nn.Module, shared: dict[int, Any]) -> str:
    """The first attribute that cannot be copied by itself."""
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key not in BOOKKEEPING and not _copies(value, shared):
                return f"'{name}.{key}'" if name else f"'{key}'"
    return "one of its tensors or hooks"


def _copies(value: Any, shared: dict[int, Any]) -> bool:
    try:
        with _Detaching():
            copy.deepcopy(value, dict(shared))
    except Exception:
        return False
    return True
