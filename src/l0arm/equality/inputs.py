"""Inputs like an example: other values of the same kind, shapes and masks kept."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from l0arm.equality.example import Example

RESAMPLED = 2
SMALLER = 1 / 64  # what saturates hides differences


def inputs_like(model: nn.Module, example: Example, random: torch.Generator) -> Iterator[Example]:
    """The example itself, some with resampled values, one with padding if it has masks, and one
    of smaller floats if it has any.

    Floats are drawn with the example's mean and spread, integers from its values; masks stay.
    """
    masks = _masks(model, example)

    def fresh(tensor: Tensor) -> Tensor:
        return tensor if id(tensor) in masks else _resampled(tensor, random)

    yield example
    for _ in range(RESAMPLED):
        yield example.each(fresh)
    if masks:
        yield example.each(lambda t: _padded(t) if id(t) in masks else _resampled(t, random))
    if has_floats(model, example):
        yield at_scale(model, example, SMALLER, random)


def at_scale(model: nn.Module, example: Example, scale: float, random: torch.Generator) -> Example:
    """Resampled, and every float scaled; masks stay."""
    masks = _masks(model, example)

    def fresh(tensor: Tensor) -> Tensor:
        if id(tensor) in masks:
            return tensor
        drawn = _resampled(tensor, random)
        return scale * drawn if _is_float(tensor) else drawn

    return example.each(fresh)


def has_floats(model: nn.Module, example: Example) -> bool:
    """Whether there are floats other than masks."""
    masks = _masks(model, example)
    leaves = pytree.tree_leaves((example.args, dict(example.kwargs)))
    return any(isinstance(x, Tensor) and _is_float(x) and id(x) not in masks for x in leaves)


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _masks(model: nn.Module, example: Example) -> set[int]:
    """The tensors of a call that are masks, by identity."""
    names = list(inspect.signature(model.forward).parameters)
    names += [""] * len(example.args)  # of *args
    named = [*zip(names, example.args, strict=False), *example.kwargs.items()]
    leaves = (leaf for name, value in named for leaf in _leaves(name, value))
    return {id(tensor) for place, tensor in leaves if _is_mask(place.lower(), tensor)}


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors in an argument, with the keys that lead to them."""
    for path, leaf in pytree.tree_flatten_with_path(value)[0]:
        if isinstance(leaf, Tensor):
            yield name + pytree.keystr(path), leaf


def _is_mask(place: str, tensor: Tensor) -> bool:
    """Truth values; zeros and ones under a name with "mask"; and what is added to attention."""
    if tensor.dtype == torch.bool:
        return True
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        return True
    return "mask" in place and len(torch.unique(tensor)) <= 2


def _padded(mask: Tensor) -> Tensor:
    """The last quarter of the last row turned to the rarer of its two values."""
    values, counts = torch.unique(mask, return_counts=True)
    if not mask.dim() or mask.shape[-1] < 2 or len(values) > 2:
        return mask
    common = values[counts.argmax()].item()
    rarer = values[counts.argmin()].item() if len(values) == 2 else type(common)(not common)
    rows = mask.clone().reshape(-1, mask.shape[-1])
    rows[-1, -max(1, mask.shape[-1] // 4) :] = rarer
    return rows.reshape(mask.shape)


def _resampled(tensor: Tensor, random: torch.Generator) -> Tensor:
    if not tensor.numel():
        return tensor
    if _is_float(tensor):
        noise = torch.randn(tensor.shape, generator=random, dtype=torch.float64).to(tensor)
        spread = tensor.std() if tensor.numel() > 1 else tensor.abs().max()
        spread = torch.where(spread > 0, spread, torch.ones_like(spread))
        return tensor.mean() + spread * noise
    chosen = torch.randint(tensor.numel(), tensor.shape, generator=random)
    return tensor.flatten()[chosen.to(tensor.device)]
