"""The records of a run: one line of JSON per epoch."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from l0arm.files import parse_json, write_bytes
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
    """Reduce the file to the lines that ``lines_until`` returns, before a run resumes."""
    kept = b"".join(line + b"\n" for line in lines_until(path, epoch))
    if path.exists() and path.read_bytes() != kept:
        write_bytes(path, kept)


def lines_until(path: Path, epoch: int) -> list[bytes]:
    """The records of the epochs 1 to ``epoch``, in this order.

    Records of later epochs, torn lines and copies of a line are left out.

    Raises:
        ValueError: A record is missing, or there are two of one epoch. The message names the line.
    """
    found: dict[int, bytes] = {}
    torn: list[int] = []
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], 1):
        try:
            own = _record(parse_json(line)).epoch
        except (KeyError, TypeError, ValueError):
            torn.append(number)
            continue
        if own <= epoch and found.setdefault(own, line) != line:
            raise ValueError(f"{path}, line {number}: there is another record of epoch {own}")
    missing = [n for n in range(1, epoch + 1) if n not in found]
    if missing:
        unread = f" (line {torn[0]} cannot be read)" if torn else ""
        raise ValueError(f"{path}, line {missing[0]}: no record of epoch {missing[0]}{unread}")
    return [found[n] for n in range(1, epoch + 1)]


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
        return [_record(parse_json(line)) for line in lines]
    except (EOFError, gzip.BadGzipFile, zlib.error, KeyError, TypeError, ValueError) as error:
        raise UserError(f"the records in {path.parent} are damaged: {error}") from None


def _epoch(line: bytes) -> float:
    """The epoch of a line, or infinity if the line is torn."""
    try:
        return int(parse_json(line)["epoch"])
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
    record = EpochRecord(**values)
    for name in ("epoch", "steps", *SCALARS):
        value = getattr(record, name)
        kind = int if name in ("epoch", "steps") else int | float
        if not isinstance(value, kind) or isinstance(value, bool):
            raise TypeError(f"{name} is {str(value)[:40]}")
    return record
