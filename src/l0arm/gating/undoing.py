"""Transactions on a model: what was done to it is undone if an exception is raised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def undone_if_refused(model: nn.Module) -> Iterator[None]:
    """Restore hooks, submodules, modes and attributes if anything is raised inside.

    The values of tensors are not restored: nothing that gates a model writes to them.

    >>> model = nn.Sequential(nn.Linear(2, 2))
    >>> try:
    ...     with undone_if_refused(model):
    ...         model[0] = nn.ReLU()
    ...         raise ValueError
    ... except ValueError:
    ...     model[0]
    Linear(in_features=2, out_features=2, bias=True)
    """
    before = [_Seen(module) for module in model.modules()]
    try:
        yield
    except BaseException:  # an interruption too
        for seen in before:
            seen.put_back()
        raise


class _Seen:
    """A module's attributes, and the entries of those that are dictionaries (hooks, children)."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.attributes = module, dict(vars(module))
        held = self.attributes.items()
        self.entries: dict[str, dict[Any, Any]] = {
            key: dict(value) for key, value in held if isinstance(value, dict)
        }

    def put_back(self) -> None:
        for key, entries in self.entries.items():
            self.attributes[key].clear()  # in place: the handle of a hook knows its dictionary
            self.attributes[key].update(entries)
        vars(self.module).clear()
        vars(self.module).update(self.attributes)
