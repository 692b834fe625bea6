"""Example inputs of a model, kept so that later steps can run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from l0arm.equality.modes import quiet
from l0arm.gating.copying import copied


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

    def check_runs(self, model: nn.Module) -> None:
        """Raise unless the model runs on it; asked of a copy, in the model's own precision."""
        twin, like = copied(model), next(model.parameters())

        def fitting(tensor: Tensor) -> Tensor:
            return tensor.to(like) if tensor.is_floating_point() else tensor.to(like.device)

        failures: list[Exception] = []
        for call in (self.each(lambda tensor: tensor.to(like.device)), self.each(fitting)):
            try:
                with quiet(twin):
                    twin(*call.args, **call.kwargs)
                return
            except Exception as error:  # whatever a forward raises
                failures.append(error)
        text = (str(failures[0]).strip() or "no message").splitlines()[0].strip()[:200]
        raise ValueError(
            f"the model does not run on the example inputs: {type(failures[0]).__name__}: {text}; "
            "check their shapes, dtypes and device"
        )
