"""The format of checkpoints: tensors as safetensors, everything else as JSON, no pickle.

A state is a tree of dicts and lists. In the JSON a tensor is replaced by {"tensor": name}. The
tensors are written first, then the JSON with their SHA-256. A checkpoint without JSON, or with
another checksum, was not written to its end and is skipped.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from l0arm.files import write_bytes, write_json
from l0arm.lab.errors import UserError

SCHEMA = 1
KEEP = 2  # the newest, and the one before in case the newest is damaged


def save_checkpoint(folder: Path, number: int, state: dict[str, Any]) -> None:
    """Write checkpoint ``number``, then delete older ones."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    tree = _without_tensors(state, "", tensors)
    data = save(tensors)
    write_bytes(_tensors(folder, number), data)
    checksum = hashlib.sha256(data).hexdigest()
    write_json(_tree(folder, number), {"schema": SCHEMA, "sha256": checksum, "state": tree})
    for old in list(_numbers(folder))[KEEP:]:
        _tree(folder, old).unlink(missing_ok=True)
        _tensors(folder, old).unlink(missing_ok=True)


def newest_checkpoint(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """Read the newest intact checkpoint.

    Returns:
        Its state, or None if there is none, and a message for each damaged one that was skipped.
    """
    damaged: list[str] = []
    for number in _numbers(folder):
        try:
            return _read(folder, number), damaged
        except (OSError, ValueError, KeyError, TypeError) as error:
            damaged.append(f"{_tree(folder, number)}: {error}")
    return None, damaged


def _read(folder: Path, number: int) -> dict[str, Any]:
    written = json.loads(_tree(folder, number).read_text(encoding="utf-8"))
    if written["schema"] > SCHEMA:
        raise UserError(
            f"{_tree(folder, number)} was written by a newer version of l0arm "
            f"(schema {written['schema']}, this one reads {SCHEMA}); upgrade l0arm"
        )
    data = _tensors(folder, number).read_bytes()
    if hashlib.sha256(data).hexdigest() != written["sha256"]:
        raise ValueError("its tensors are not those that were written")
    state: dict[str, Any] = _with_tensors(written["state"], load(data))
    return state


def _numbers(folder: Path) -> Iterator[int]:
    """The checkpoints in a folder, newest first."""
    names = (re.fullmatch(r"(\d+)\.json", path.name) for path in folder.glob("*.json"))
    yield from sorted((int(name[1]) for name in names if name), reverse=True)


def _tree(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.json"


def _tensors(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.safetensors"


def _without_tensors(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The tree as JSON values. Every tensor is moved to ``tensors`` under its path."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach().contiguous().clone()  # safetensors refuses shared memory
        return {"tensor": path}
    if isinstance(value, dict):
        items = [[key, _without_tensors(v, f"{path}/{key}", tensors)] for key, v in value.items()]
        return {"dict": items}  # pairs, because an optimizer's keys are numbers
    if isinstance(value, list | tuple):
        return [_without_tensors(v, f"{path}/{n}", tensors) for n, v in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint cannot hold {path}, a {type(value).__name__}")


def _with_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of ``_without_tensors``."""
    if isinstance(value, list):
        return [_with_tensors(v, tensors) for v in value]
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        return {key: _with_tensors(v, tensors) for key, v in value["dict"]}
    return value
