"""Example inputs of a model, kept so that later steps can run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree


@dataclass(frozen=True, eq=False)
class Example:
    """Arguments of one call, and which outputs count (by key or number; all if empty)."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        inputs: Sequence[Any] | Any = None,
        kwargs: Mapping[str, Any] | None = None,
        outputs: Sequence[str | int] | None = None,
    ) -> Example | None:
        """From what a user passes: a single value is one argument; nothing at all is no example.

            >>> import torch
        >>> Example.of(torch.zeros(2)).args
            (tensor([0., 0.]),)
        """
        if inputs is None and kwargs is None:
            return None
        args = () if inputs is None else inputs
        args = tuple(args) if isinstance(args, tuple | list) else (args,)
        names = tuple(str(name) for name in outputs or ())
        return cls(args, dict(kwargs or {}), names).each(lambda tensor: tensor.detach().clone())

    def each(self, change: Callable[[Tensor], Tensor]) -> Example:
        """The same call with every tensor changed."""
        args, kwargs = pytree.tree_map_only(Tensor, change, (self.args, dict(self.kwargs)))
        return replace(self, args=args, kwargs=kwargs)
