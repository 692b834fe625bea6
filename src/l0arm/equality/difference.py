"""The difference between the outputs of two models, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

KEYS = ("key", "idx", "name")  # attributes in which torch keeps the place of a part
REPEATED_FILL = 1e3  # repeated values over this many times the rest are fill values of masks
SINGLE_FILL = 1e4  # the same for a value that occurs once; it must also exceed 1e4 itself
FILLS = 2  # kinds of fill values in one tensor


def tensors_in(output: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in an output, by its place in nested mappings, sequences and dataclasses.

    >>> [name for name, _ in tensors_in({"logits": torch.ones(2), "states": [torch.ones(1)]})]
    ['logits', 'states.0']
    """
    if isinstance(output, Tensor):
        yield name or "0", output
        return
    if isinstance(output, Mapping):
        parts = [(str(key), value) for key, value in output.items()]
    elif isinstance(output, tuple | list):
        parts = [(str(number), value) for number, value in enumerate(output)]
    elif is_dataclass(output) and not isinstance(output, type):
        parts = [(f.name, getattr(output, f.name)) for f in fields(output)]
    else:  # a class registered as a pytree; a leaf itself has an empty path
        leaves = pytree.tree_flatten_with_path(output)[0]
        parts = [(_dotted(path), leaf) for path, leaf in leaves if path]
    for key, value in parts:
        yield from tensors_in(value, f"{name}.{key}" if name else key)


def _dotted(path: tuple[Any, ...]) -> str:
    parts = (getattr(p, next((k for k in KEYS if hasattr(p, k)), ""), p) for p in path)
    return ".".join(map(str, parts))


def selected_outputs(output: Any, names: Collection[str]) -> dict[str, Tensor]:
    """The tensors of an output to compare: all, or those under these outermost keys."""
    found = dict(tensors_in(output))
    return {k: v for k, v in found.items() if not names or k.partition(".")[0] in names}


def output_difference(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The largest relative difference of all tensors; infinite if names or shapes differ."""
    if list(actual) != list(expected):
        return math.inf
    return max((relative_difference(actual[k], y) for k, y in expected.items()), default=0.0)


def relative_difference(actual: Tensor, expected: Tensor) -> float:
    """The largest difference relative to max|expected|.

    It is infinite if shapes, non-finite entries or integers differ. Fill values (-1e9, or the
    lowest number of the type, where a choice is forbidden) are compared among themselves. Beside
    them any difference of the other entries would look like rounding.

    >>> y = torch.tensor([0.5, -1.0, -1e9, -1e9])
    >>> relative_difference(y + torch.tensor([0.0, 0.25, 0.0, 0.0]), y)
    0.25
    """
    if actual.shape != expected.shape:
        return math.inf
    if not _is_inexact(expected):
        return 0.0 if bool((actual == expected).all()) else math.inf
    finite = expected.isfinite()
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    if not bool((same | finite).all()) or not bool((actual.isfinite() == finite).all()):
        return math.inf
    ordinary = _ordinary_entries(expected)
    worst = 0.0
    for part in (ordinary, finite & ~ordinary):
        if bool(part.any()):
            distance = float((actual[part] - expected[part]).abs().max())
            scale = float(expected[part].abs().max())
            relative = distance / scale if scale else (math.inf if distance else 0.0)
            worst = max(worst, relative)
    return worst


def comparable_entries(y: Tensor) -> Tensor:
    """Mask of the entries worth comparing: finite, not fill values, not integer-valued.

    A tensor of whole numbers only holds counts or decisions, which do not change by little.
    """
    if not _is_inexact(y):
        return y.new_zeros(y.shape, dtype=torch.bool)
    ordinary = _ordinary_entries(y)
    real = torch.view_as_real(y) if y.is_complex() else y
    values = real[ordinary]
    return ordinary if bool((values != values.round()).any()) else torch.zeros_like(ordinary)


def has_comparable_entries(outputs: Mapping[str, Tensor]) -> bool:
    """Whether any output has an entry worth comparing."""
    return any(bool(comparable_entries(y).any()) for y in outputs.values())


def _is_inexact(y: Tensor) -> bool:
    return y.is_floating_point() or y.is_complex()


def _ordinary_entries(y: Tensor) -> Tensor:
    """Mask of the finite entries that are not fill values."""
    ordinary = y.isfinite()
    if y.is_complex():
        return ordinary
    size = y.abs()
    for _ in range(FILLS):
        if not bool(ordinary.any()):
            break
        largest = ordinary & (size >= size[ordinary].max() / 2)  # of either sign
        rest = ordinary & ~largest
        if not _are_fill_values(y[largest], y[rest]):
            break
        ordinary = rest
    return ordinary


def _are_fill_values(largest: Tensor, rest: Tensor) -> bool:
    """Whether the largest values are too large beside the rest to be of the same kind."""
    if not rest.numel() or not bool(rest.any()):
        return False  # nothing is hidden, or the rest is zeros, which have no scale
    ratio = largest.abs().max().double() / rest.abs().max().double()
    if torch.unique(largest).numel() < largest.numel():
        return bool(ratio > REPEATED_FILL)
    return bool(ratio > SINGLE_FILL and largest.abs().max() > SINGLE_FILL)
