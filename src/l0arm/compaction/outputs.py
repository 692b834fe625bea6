"""Tensors in what a model returns, and how far two such returns are apart."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

KEYS = ("key", "idx", "name")  # what torch calls the place of a part


def tensors_in(output: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in an output, by its place in nested mappings, sequences and dataclasses.

    >>> import torch
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
    else:  # of a class that torch was told of
        parts = [(_keys(path), leaf) for path, leaf in _registered(output)]
    for key, value in parts:
        yield from tensors_in(value, f"{name}.{key}" if name else key)


def _registered(output: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """The leaves inside of an object; a leaf itself has none."""
    return [entry for entry in pytree.tree_flatten_with_path(output)[0] if entry[0]]


def _keys(path: tuple[Any, ...]) -> str:
    parts = (getattr(p, next((k for k in KEYS if hasattr(p, k)), ""), p) for p in path)
    return ".".join(map(str, parts))


def chosen(output: Any, names: Collection[str]) -> dict[str, Tensor]:
    """The tensors of an output that count: all, or those under these outermost keys."""
    found = dict(tensors_in(output))
    return {k: v for k, v in found.items() if not names or k.partition(".")[0] in names}


def difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference relative to max|y| of its tensor; infinite if shapes differ."""
    if list(one) != list(other):
        return math.inf
    return max((_apart(one[name], y) for name, y in other.items()), default=0.0)


def holds_numbers(outputs: Mapping[str, Tensor]) -> bool:
    """Whether there is a finite number that could differ by little."""
    return any(bool(measured(y).any()) for y in outputs.values())


def measured(y: Tensor) -> Tensor:
    """Where an output measures: finite, and not all whole numbers, which are counts or choices."""
    if not (y.is_floating_point() or y.is_complex()):
        return y.new_zeros(y.shape, dtype=torch.bool)
    finite = y.isfinite()
    real = torch.view_as_real(y) if y.is_complex() else y
    values = real[finite]
    return finite if bool((values != values.round()).any()) else torch.zeros_like(finite)


def _apart(got: Tensor, y: Tensor) -> float:
    if got.shape != y.shape:
        return math.inf
    if not (y.is_floating_point() or y.is_complex()):
        return 0.0 if bool((got == y).all()) else math.inf
    finite = y.isfinite()
    if not bool((got.isfinite() == finite).all()):
        return math.inf
    if not bool(finite.any()):
        return 0.0
    apart = float((got - y)[finite].abs().max())
    scale = float(y[finite].abs().max())
    return apart / scale if scale else (math.inf if apart else 0.0)
