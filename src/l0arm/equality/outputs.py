"""Tensors in what a model returns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

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
