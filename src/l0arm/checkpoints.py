"""The format of checkpoints: tensors as safetensors, everything else as JSON, no pickle.

A state is a tree of dicts and lists. In the JSON a tensor is replaced by {"tensor": name}. The
tensors are written first, then the JSON with a SHA-256 digest of both. A checkpoint without JSON
was not written to its end. One with another digest is damaged.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from l0arm.files import read_json, write_bytes, write_json

SCHEMA = 2  # schema 1 had a digest of the tensors only, under the name "sha256"


class NewerCheckpoint(Exception):
    """A checkpoint is intact, and was written by a newer version of l0arm."""


def save_checkpoint(folder: Path, number: int, state: dict[str, Any]) -> None:
    """Write checkpoint ``number``, then delete all but this one and the one before.

    The one before is kept in case this one is damaged. Later ones were passed over when the run was
    resumed. The folder must exist: one that was moved away is not created again.
    """
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    tree = _without_tensors(state, "", tensors)
    data = save(tensors)
    write_bytes(_tensors(folder, number), data)
    digest = _digest(SCHEMA, tree, data)
    write_json(_tree(folder, number), {"schema": SCHEMA, "digest": digest, "state": tree})
    kept = [found for found in _numbers(folder) if found <= number][:2]
    for old in set(_numbers(folder)) - set(kept):
        _tree(folder, old).unlink(missing_ok=True)
        _tensors(folder, old).unlink(missing_ok=True)


def newest_checkpoint(
    folder: Path, use: Callable[[dict[str, Any]], object] | None = None
) -> tuple[dict[str, Any] | None, list[str]]:
    """Read the newest checkpoint that is intact and can be used.

    Args:
        folder: The folder of the checkpoints.
        use: Called with the state. If it raises ValueError, the checkpoint before is tried.

    Returns:
        The state, or None if there is none, and a line for each checkpoint that was skipped.

    Raises:
        NewerCheckpoint: The checkpoint is intact, and was written by a newer version of l0arm.
    """
    skipped: list[str] = []
    for number in _numbers(folder):
        path = _tree(folder, number)
        try:
            state = _read(folder, number)
            if use is not None:
                use(state)
            return state, skipped
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            skipped.append(reason if str(path) in reason else f"{path}: {reason}")
    return None, skipped


def _read(folder: Path, number: int) -> dict[str, Any]:
    """The state of a checkpoint. ValueError if it is damaged or malformed."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = _tree(folder, number)
    record = read_json(path)
    if not isinstance(record, dict):
        raise ValueError("it is not a JSON object")
    data = _tensors(folder, number).read_bytes()
    schema, tree = record.get("schema"), record.get("state")
    if "digest" in record:  # checked before the schema, which may be what is damaged
        intact = record["digest"] == _digest(schema, tree, data)
    else:
        intact = schema == 1 and record.get("sha256") == hashlib.sha256(data).hexdigest()
    if not intact:
        raise ValueError("it is damaged: its content does not match its digest")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise NewerCheckpoint(
            f"{path} was written by a newer version of l0arm "
            f"(schema {schema}, this one reads {SCHEMA}); upgrade l0arm"
        )
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"its tensors cannot be read: {error}") from None
    state = _with_tensors(tree, tensors)
    if not isinstance(state, dict):
        raise ValueError("its state is not a dict")
    return state


def _digest(schema: Any, tree: Any, data: bytes) -> str:
    """SHA-256 of all that a checkpoint holds. All schemas since 2 are checked by it."""
    digest = hashlib.sha256(json.dumps([schema, tree]).encode())
    digest.update(hashlib.sha256(data).digest())
    return digest.hexdigest()


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
    """The inverse of ``_without_tensors``. ValueError if the tree is malformed."""
    if isinstance(value, list):
        return [_with_tensors(v, tensors) for v in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"tensor": str(name)} if name in tensors:
            return tensors[name]
        case {"dict": list(pairs)}:
            return dict(_pair(pair, tensors) for pair in pairs)
    raise ValueError(f"its state is malformed at {str(value)[:80]}")


def _pair(pair: Any, tensors: dict[str, Tensor]) -> tuple[str | int, Any]:
    match pair:
        case [str(key) | int(key), value]:
            return key, _with_tensors(value, tensors)
    raise ValueError(f"its state is malformed at {str(pair)[:80]}")
