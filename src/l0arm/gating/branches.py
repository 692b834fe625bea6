"""Residual branches as units: x + z f(x). A closed branch is not computed, and cut it is gone.

The modules of a closed branch are replaced by ones that return zeros of the shape of their input.
The branch is added to its own input, so its zeros have the right shape in the end. In training this
lasts for one call of the module around them, and compaction makes it permanent.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from l0arm.gating.draw import Draw
from l0arm.gating.layout import Layout

CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # never called themselves


class Nothing(nn.Module):
    """In the place of a module whose branch was cut: it computes nothing and returns zeros.

    Args:
        original: The module that is replaced.
        returns: What the module returned, as in ``Branch.returns``.

    Example:
        >>> Nothing(nn.Linear(3, 3), ())(torch.ones(1, 3))
        tensor([[0., 0., 0.]])
    """

    def __init__(self, original: nn.Module, returns: tuple[str, ...]) -> None:
        super().__init__()
        self.returns = returns
        self.arguments = tuple(inspect.signature(original.forward).parameters)
        self.training = original.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        named = {**dict(zip(self.arguments, args, strict=False)), **kwargs}
        like = next(filter(_is_float, named.values()), None)
        if like is None:
            raise TypeError("a closed branch gets no tensor whose shape its zeros could have")
        zeros = self._zeros(like)
        if not self.returns:
            return zeros
        known = {"zeros": zeros, "none": None}
        return tuple(known[part] if part in known else named[part] for part in self.returns)

    def _zeros(self, like: Tensor) -> Tensor:
        return torch.zeros_like(like)

    def extra_repr(self) -> str:
        return ", ".join(self.returns)


class Closed(Nothing):
    """In the place of a module whose branch is closed in a draw.

    Its parameters get zeros for a gradient, as they would if the branch were multiplied by zero.
    """

    def __init__(self, original: nn.Module, returns: tuple[str, ...]) -> None:
        super().__init__(original, returns)
        self._original = (original,)  # in a tuple: it is no submodule

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Zeros. A module that fills a cache is computed, since others ask for its length."""
        if any(is_cache(value) for value in (*args, *kwargs.values())):
            output = self._original[0](*args, **kwargs)
            return pytree.tree_map_only(Tensor, self._zeros, output)
        return super().forward(*args, **kwargs)

    def _zeros(self, like: Tensor) -> Tensor:
        zeros = torch.zeros_like(like)
        tensors = (like, *self._original[0].parameters())  # of this module, and of those before it
        linked = [t for t in tensors if t.requires_grad] if torch.is_grad_enabled() else []
        empty = [t.flatten()[:0].sum().to(zeros) for t in linked]  # 0, and for a gradient zeros
        return zeros + torch.stack(empty).sum() if empty else zeros


def is_cache(value: object) -> bool:
    """Whether an argument is a cache of keys and values, as those of transformers."""
    return callable(getattr(value, "get_seq_length", None))


def caller_of(model: nn.Module, name: str) -> str:
    """The innermost module around another that is called itself: no ModuleList."""
    outer = name.rpartition(".")[0]
    while outer and isinstance(model.get_submodule(outer), CONTAINERS):
        outer = outer.rpartition(".")[0]
    return outer


def remove_branches(model: nn.Module, layout: Layout, draw: Draw) -> None:
    """Replace the modules of closed branches for good."""
    for gate, branch in layout.branches:
        if not draw.is_open(gate):
            for name, returns in zip(branch.modules, branch.returns, strict=True):
                home, _, key = name.rpartition(".")
                owner = model.get_submodule(home)
                owner._modules[key] = Nothing(owner.get_submodule(key), returns)


def _is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
