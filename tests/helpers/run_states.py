"""What is in the folder of a run, without the times."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from l0arm.lab.runs import records
from l0arm.lab.runs.checkpoint import newest_checkpoint
from l0arm.lab.runs.folder import RunFolder


def bits(folder: RunFolder) -> dict[str, Any]:
    """Every value in the newest checkpoint that does not depend on time, tensors as bytes."""
    state, damaged = newest_checkpoint(folder.checkpoints)
    assert state is not None
    assert damaged == []
    flat: dict[str, Any] = {}
    _flatten(state, "", flat)
    return {key: value for key, value in flat.items() if "seconds" not in key}


def _flatten(value: Any, path: str, flat: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            _flatten(part, f"{path}/{key}", flat)
    elif isinstance(value, Tensor):
        flat[path] = value.numpy().tobytes()
    else:
        flat[path] = value


def timeless(folder: RunFolder) -> list[records.EpochRecord]:
    """All epoch records, with their seconds set to 0."""
    return [replace(record, seconds=0.0) for record in records.read(folder.records)]
