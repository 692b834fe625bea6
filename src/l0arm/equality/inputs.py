"""What networks are compared on: inputs like an example, and masks that close some units."""

from __future__ import annotations

import inspect
import re
import zlib
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from l0arm.equality.example import Example
from l0arm.gating.layout import Layout

SEED = 0x10A2
RESAMPLED = 2  # inputs with resampled values
SMALLER = 1 / 64  # saturation hides differences, so one input is small
Closed = Literal["one", "half", "most", "rest"]  # units that a mask closes; "rest": all but one
KINDS: tuple[Closed, ...] = ("one", "half", "rest")
FEW = 8  # "most" leaves so many units open, or half of them if those are fewer


def inputs_like(model: nn.Module, example: Example, random: torch.Generator) -> Iterator[Example]:
    """The example itself, then variants of it with the same shapes and types.

    Two have resampled values, one has padding if the example has masks, and one has small floats
    if it has any. Floats are drawn with the example's mean and standard deviation, integers from
    its values. Masks stay as they are, but for the padding.
    """
    masks = _masks(model, example)

    def resample(tensor: Tensor) -> Tensor:
        return tensor if id(tensor) in masks else _resampled(tensor, random)

    yield example
    for _ in range(RESAMPLED):
        yield example.map(resample)
    if masks:
        yield example.map(lambda t: _padded(t) if id(t) in masks else _resampled(t, random))
    if has_floats(model, example):
        yield at_scale(model, example, SMALLER, random)


def at_scale(model: nn.Module, example: Example, scale: float, random: torch.Generator) -> Example:
    """The example with resampled values and every float scaled; masks stay."""
    masks = _masks(model, example)

    def resample(tensor: Tensor) -> Tensor:
        if id(tensor) in masks:
            return tensor
        drawn = _resampled(tensor, random)
        return scale * drawn if _is_float(tensor) else drawn

    return example.map(resample)


def has_floats(model: nn.Module, example: Example) -> bool:
    """Whether the example has floats other than masks."""
    masks = _masks(model, example)
    leaves = pytree.tree_leaves((example.args, dict(example.kwargs)))
    return any(isinstance(x, Tensor) and _is_float(x) and id(x) not in masks for x in leaves)


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _masks(model: nn.Module, example: Example) -> set[int]:
    """The ids of the tensors in a call that are masks."""
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
    """Booleans, additive masks with infinities, and two values under a name with "mask"."""
    if tensor.dtype == torch.bool:
        return True
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        return True
    return "mask" in place and len(torch.unique(tensor)) <= 2


def _padded(mask: Tensor) -> Tensor:
    """The mask with the last quarter of its last row set to the rarer of its two values."""
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
    taken = torch.randint(tensor.numel(), tensor.shape, generator=random)
    return tensor.flatten()[taken.to(tensor.device)]


def _parity(name: str) -> int:
    """0 or 1: for layers of one kind in turn, by the numbers in their names."""
    numbers = sum(int(number) for number in re.findall(r"\d+", name))
    return (numbers + zlib.crc32(re.sub(r"\d+", "", name).encode())) % 2


def mask_with_closed(
    layout: Layout, closed: Closed, device: torch.device, group: int | None = None
) -> Tensor:
    """Gates with one unit, half, most or all but one closed, in every group or in one.

    Which units are closed is random, but depends on the name of their group alone. So a group is
    compared on the same masks whatever other groups there are. With "most", groups of one size
    differ in the number that is left: equal numbers would hide that one group needs another's.
    """
    z = torch.ones(layout.gates, device=device)
    for number in range(len(layout.groups)) if group is None else (group,):
        name, units = layout.groups[number].name, layout.groups[number].units
        half, most = units // 2, max(units // 2, units - FEW)
        count = {"one": 1, "half": half, "most": most, "rest": units - 1}[closed]
        kind = "half" if count == half else closed
        if closed == "most" and count > 1:
            count -= _parity(name)
        random = torch.Generator().manual_seed(SEED + zlib.crc32(f"{kind} {name}".encode()))
        order = torch.randperm(units, generator=random)
        z[layout.span(number).start + order[:count].to(device)] = 0.0
    return z
