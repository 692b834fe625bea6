"""Large float32 weights that act as float64, cast piece by piece where they are used.

A comparison in float64 tells a mistake from rounding. A second copy of all weights in float64 would
need twice the memory of the model. Here a weight is cast for the length of one operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

LARGE = 2**18  # entries; smaller tensors are cast for good
LAZY_FROM = 2**24  # entries of a model; a smaller model is cast for good

aten = torch.ops.aten
VIEWS = {
    *(aten.t.default, aten.transpose.int, aten.permute.default, aten.view.default),
    *(aten.detach.default, aten.alias.default, aten.select.int, aten.slice.Tensor),
    *(aten.unsqueeze.default, aten.squeeze.dim, aten.expand.default, aten._unsafe_view.default),
    *(aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int),
}
LOOKUPS = {aten.embedding.default, aten.index.Tensor}
CHUNK = 2**16  # entries that are cast at once for a matrix product: they stay in the cache


class Widened(Tensor):
    """A float32 tensor that reports float64 and is cast whenever an operation needs its values.

    >>> weight = Widened(torch.ones(2, 3))
    >>> weight.dtype, (torch.ones(1, 3).double() @ weight.t()).tolist()
    (torch.float64, [[3.0, 3.0]])
    """

    stored: Tensor
    computed: bool  # it is no parameter, nor a view of one

    @staticmethod
    def __new__(cls, narrow: Tensor, *, computed: bool = False) -> Widened:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            narrow.shape,
            strides=narrow.stride(),
            storage_offset=narrow.storage_offset(),
            dtype=torch.float64,
            device=narrow.device,
        )
        made.stored, made.computed = narrow, computed
        return made

    def __init__(self, narrow: Tensor, *, computed: bool = False) -> None:
        pass

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Widened({self.stored!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            raise TypeError(f"{func} would write into a weight")
        if func in VIEWS:
            views, computed = func(args[0].stored, *args[1:], **kwargs), args[0].computed
            return pytree.tree_map_only(Tensor, partial(Widened, computed=computed), views)
        if func in LOOKUPS and isinstance(args[0], Widened):
            return func(args[0].stored, *args[1:], **kwargs).double()
        if func in (aten.index_select.default, aten.clone.default):
            return _widened(func(args[0].stored, *args[1:], **kwargs))
        if func is aten.mul.Tensor:
            return _product(*args)
        if func is aten.mm.default and not isinstance(args[0], Widened):
            return _matrix_product(args[0], args[1].stored)
        if func is aten.addmm.default and not kwargs and _is_plain(*args[:2]):
            return _matrix_product(args[1], args[2].stored).add_(args[0])
        wide = pytree.tree_map_only(Widened, lambda t: t.stored.double(), (tuple(args), kwargs))
        return func(*wide[0], **wide[1])


def _widened(narrow: Tensor) -> Tensor:
    """As float64, for good if it is small."""
    return Widened(narrow, computed=True) if narrow.numel() >= LARGE else narrow.double()


def _is_plain(*tensors: Tensor) -> bool:
    return not any(isinstance(tensor, Widened) for tensor in tensors)


def _product(left: Any, right: Any) -> Any:
    """left * right, one or both of them widened. A mask of zeros and ones rounds nothing."""
    for weight, mask in ((left, right), (right, left)):
        if isinstance(weight, Widened) and _is_mask(mask):
            return _widened(weight.stored * mask.to(weight.stored.dtype))
    wide = [t.stored.double() if isinstance(t, Widened) else t for t in (left, right)]
    return wide[0] * wide[1]


def _is_mask(value: Any) -> bool:
    plain = isinstance(value, Tensor) and _is_plain(value)
    return plain and bool(((value == 0) | (value == 1)).all())


def _matrix_product(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight in float64, with the weight cast in pieces along its longer stride."""
    inner, outer = weight.shape
    y = x.new_zeros(len(x), outer)
    if weight.stride(1) > weight.stride(0):  # a transposed matrix: pieces of the result
        step = max(1, CHUNK // max(1, inner))
        for at in range(0, outer, step):
            torch.mm(x, weight[:, at : at + step].double(), out=y[:, at : at + step])
    else:
        step = max(1, CHUNK // max(1, outer))
        for at in range(0, inner, step):
            y.addmm_(x[:, at : at + step], weight[at : at + step].double())
    return y


def saving_less() -> torch.autograd.graph.saved_tensors_hooks:
    """Inside, a graph keeps large float64 tensors in 16 bits: for gradients of a rough size."""

    def pack(tensor: Tensor) -> Tensor:
        if tensor.dtype != torch.float64 or tensor.numel() < LARGE:
            return tensor
        if isinstance(tensor, Widened):  # one of a parameter takes no memory of its own
            return tensor.stored.bfloat16() if tensor.computed else tensor
        return tensor.bfloat16()

    def unpack(tensor: Tensor) -> Tensor:
        return tensor.double() if tensor.dtype == torch.bfloat16 else tensor

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def widen_large(model: nn.Module) -> dict[int, Tensor]:
    """Replace the large float32 parameters of a model that is large itself; what they replaced.

    The result maps the id of each new parameter to the old one. Small models are left alone.
    """
    tensors = {id(p): p for p in model.parameters()}
    if sum(p.numel() for p in tensors.values()) < LAZY_FROM:
        return {}
    large = {
        key: nn.Parameter(Widened(p.detach()), requires_grad=False)
        for key, p in tensors.items()
        if p.dtype == torch.float32 and p.numel() >= LARGE
    }
    _replace(model, large)
    return {id(large[key]): tensors[key] for key in large}


def put_back(model: nn.Module, replaced: dict[int, Tensor]) -> None:
    """Undo ``widen_large``."""
    _replace(model, replaced)


def _replace(model: nn.Module, new: dict[int, Any]) -> None:
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if id(parameter) in new:
                module._parameters[key] = new[id(parameter)]
