"""The records of a run: one line of JSON per epoch."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from l0arm.files import write_bytes
from l0arm.lab.errors import UserError


@dataclass(frozen=True)
class GroupRecord:
    """The gates of one group."""

    name: str
    units: int
    open: int  # under z-bar
    histogram: tuple[int, ...]  # of g(phi) over [0, 1]


@dataclass(frozen=True)
class EpochRecord:
    """The figures of one epoch. FLOPs are per image. A dense network has no gates and no rates."""

    epoch: int  # epochs done, from 1
    steps: int  # since the start of the run
    lr: float
    train_loss: float  # data loss of the sampled networks, mean over the epoch
    penalty: float
    train_accuracy: float  # percent, of the sampled networks
    test_loss: float
    test_accuracy: float  # percent, under z-bar. Nothing is ever selected by it.
    seconds: float  # of training, without evaluation
    prune_rate: float = 0.0  # percent, as the paper counts
    prune_rate_realised: float = 0.0
    architecture: str = ""
    flops_dense: float = 0.0
    flops_inference: float = 0.0  # expected, one forward pass
    flops_training: float = 0.0  # expected, all forward passes of a step
    undecided: float = 0.0  # share of gates with 0.05 < g(phi) < 0.95
    groups: tuple[GroupRecord, ...] = ()
    by_step: tuple[tuple[int, float, float], ...] = ()  # step, E[FLOPs] training, inference


SCALARS = (
    *("lr", "train_loss", "penalty", "train_accuracy", "test_loss", "test_accuracy", "seconds"),
    *("prune_rate", "prune_rate_realised", "flops_inference", "flops_training", "undecided"),
)


def scalars(record: EpochRecord) -> dict[str, float]:
    """The numbers of an epoch by name, with the count of open units of each group."""
    values = asdict(record)
    numbers: dict[str, float] = {name: values[name] for name in SCALARS}
    return numbers | {f"open/{group.name}": float(group.open) for group in record.groups}


def append(path: Path, record: EpochRecord) -> None:
    """Add a line. It is on the disk when this returns."""
    with path.open("ab") as file:
        file.write(json.dumps(asdict(record), allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def keep_until(path: Path, epoch: int) -> None:
    """Drop the lines of later epochs and a torn last line, before a run resumes."""
    if not path.exists():
        return
    kept = [line for line in path.read_bytes().splitlines() if _epoch(line) <= epoch]
    write_bytes(path, b"".join(line + b"\n" for line in kept))


def read(path: Path) -> list[EpochRecord]:
    """All records of a run, from ``epochs.jsonl`` or its compressed copy.

    Fields of later versions are ignored. Fields that an earlier version did not write have their
    defaults.
    """
    packed = path.with_name(path.name + ".gz")
    if not path.exists() and not packed.exists():
        raise UserError(f"no records in {path.parent}: is it the folder of a run?")
    try:
        raw = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
        lines = [line for line in raw.splitlines() if _epoch(line) < float("inf")]
        return [_record(json.loads(line)) for line in lines]
    except (EOFError, gzip.BadGzipFile, zlib.error, KeyError, TypeError, ValueError) as error:
        raise UserError(f"the records in {path.parent} are damaged: {error}") from None


def _epoch(line: bytes) -> float:
    """The epoch of a line, or infinity if the line is torn."""
    try:
        return int(json.loads(line)["epoch"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _record(values: dict[str, Any]) -> EpochRecord:
    known = {field.name for field in fields(EpochRecord)}
    values = {key: value for key, value in values.items() if key in known}
    values["groups"] = tuple(
        GroupRecord(g["name"], g["units"], g["open"], tuple(g["histogram"]))
        for g in values.get("groups", ())
    )
    values["by_step"] = tuple(
        (int(step), float(training), float(inference))
        for step, training, inference in values.get("by_step", ())
    )
    return EpochRecord(**values)
