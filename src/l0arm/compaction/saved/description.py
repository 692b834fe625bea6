"""What describes a saved network: ``l0arm.json`` to rebuild it, ``README.md`` for people."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from l0arm.compaction.saved.layers import LayersLeft
from l0arm.compaction.saved.weights import SavedError, TensorInfo
from l0arm.files import read_json
from l0arm.gating import Group
from l0arm.gating.records import Kind, RecordError, checked, group_of, record_of

FORMAT, VERSION = "l0arm-saved", 1
FIELDS: dict[str, Kind] = {
    "format": str,
    "version": int,
    "model": str,
    "parameters": list,
    "groups": list,
    "replaced": list,
    "attributes": dict,
    "original": dict,
    "tensors": dict,
    "tensors_sha256": str,
    "metrics": dict,
    "certificate": (dict, type(None)),
}
OPTIONAL: dict[str, tuple[Kind, Any]] = {"layers": (dict, {})}
CARD = """---
library_name: l0arm
tags:
- l0arm
- pruning
- sparsity
---
"""


@dataclass(frozen=True)
class Description:
    """The structure of a small network, relative to the model it was cut from."""

    model: str  # the name of the class; for people, nothing is imported by it
    parameters: tuple[int, int]  # of the dense and of the small network
    groups: tuple[Group, ...]
    kept: tuple[tuple[int, ...], ...]  # of every group: its open units that something reads
    replaced: tuple[str, ...]  # attention modules that were replaced to lose heads
    attributes: Mapping[str, int]  # integers that count units, after the cut
    original: Mapping[str, TensorInfo]
    tensors: Mapping[str, TensorInfo]  # by their names in the file, where layers may be renumbered
    tensors_sha256: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    certificate: Mapping[str, Any] | None = None
    layers: LayersLeft = field(default_factory=LayersLeft)

    def to_json(self) -> str:
        """As text with a checksum of its content; every group and tensor has a line."""
        record: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "parameters": list(self.parameters),
            "groups": [
                {**record_of(group), "kept": list(kept)}
                for group, kept in zip(self.groups, self.kept, strict=True)
            ],
            "replaced": list(self.replaced),
            "attributes": dict(self.attributes),
            "original": _tensor_records(self.original),
            "tensors": _tensor_records(self.tensors),
            "tensors_sha256": self.tensors_sha256,
            "metrics": dict(self.metrics),
            "certificate": None if self.certificate is None else dict(self.certificate),
        }
        if self.layers.left:
            record["layers"] = {home: list(left) for home, left in self.layers.left.items()}
        try:
            record = json.loads(json.dumps(record, allow_nan=False))  # keys become text
            record["sha256"] = digest(record)
            lines = ",\n".join(f"{_text(k)}: {_lines(v)}" for k, v in record.items())
            lines.encode()  # half a character cannot be written
        except (TypeError, ValueError) as error:
            raise SavedError(f"metrics or certificate cannot be written as JSON: {error}") from None
        return "{\n" + lines + "\n}\n"

    @classmethod
    def from_record(cls, record: Any, where: str) -> Description:
        """Validate every field of parsed JSON; anybody may have written it."""
        if not isinstance(record, dict):
            raise SavedError(f"{where} must be a JSON object, got {type(record).__name__}")
        _check_version(record, where)
        _check_digest(record, where)
        try:
            record = checked(record, where, FIELDS, OPTIONAL)
            entries = [_group(e, f"{where}, group {n}") for n, e in enumerate(record["groups"])]
        except RecordError as error:
            raise SavedError(str(error)[:400]) from None
        counts, replaced, attributes = (
            record[key] for key in ("parameters", "replaced", "attributes")
        )
        if len(counts) != 2 or not all(type(n) is int and 0 <= n < 2**63 for n in counts):
            raise SavedError(f"{where}: parameters must be two counts, got {str(counts)[:80]}")
        if not all(isinstance(n, str) for n in replaced) or len(set(replaced)) < len(replaced):
            raise SavedError(f"{where}: replaced must list names of modules, each of them once")
        if not all(type(value) is int for value in attributes.values()):
            raise SavedError(f"{where}: attributes must be integers")
        for home, left in record["layers"].items():
            in_order = isinstance(left, list) and all(type(n) is int and n >= 0 for n in left)
            if not in_order or left != sorted(set(left)):
                raise SavedError(f"{where}: layers must list those left of {home[:80]!r} in order")
        return cls(
            model=record["model"],
            parameters=(counts[0], counts[1]),
            groups=tuple(group for group, _ in entries),
            kept=tuple(kept for _, kept in entries),
            replaced=tuple(replaced),
            attributes=attributes,
            original=_tensor_infos(record["original"], f"{where}, original"),
            tensors=_tensor_infos(record["tensors"], f"{where}, tensors"),
            tensors_sha256=record["tensors_sha256"],
            metrics=record["metrics"],
            certificate=record["certificate"],
            layers=LayersLeft({home: tuple(left) for home, left in record["layers"].items()}),
        )


def read_description(path: Path) -> Description:
    """The description in a file, whose size and depth are bounded."""
    try:
        record = read_json(path)
    except ValueError as error:
        raise SavedError(str(error)) from None
    return Description.from_record(record, str(path))


def digest(record: Mapping[str, Any]) -> str:
    """SHA-256 of a record's content, whatever its order and spacing."""
    content = {key: value for key, value in record.items() if key != "sha256"}
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _check_version(record: dict[str, Any], where: str) -> None:
    if record.get("format") != FORMAT:
        raise SavedError(f"{where} does not describe a network that l0arm.save wrote")
    version = record.get("version")
    if type(version) is not int or version < 1:
        raise SavedError(f"{where}: version must be a number from 1 on, got {str(version)[:40]}")
    if version > VERSION:
        raise SavedError(
            f"{where} was written by a newer l0arm (schema {str(version)[:40]}, this one reads "
            f"{VERSION}); upgrade l0arm"
        )


def _check_digest(record: dict[str, Any], where: str) -> None:
    try:
        expected = digest(record)
    except ValueError:  # what cannot be written again
        expected = ""
    if record.pop("sha256", None) != expected:
        raise SavedError(f"{where} was changed after it was written: its SHA-256 is another")


def _group(entry: Any, where: str) -> tuple[Group, tuple[int, ...]]:
    if not isinstance(entry, dict) or not isinstance(entry.get("kept"), list):
        raise SavedError(f"{where} must be an object with a list of the units it keeps")
    kept = entry["kept"]
    group = group_of({key: value for key, value in entry.items() if key != "kept"}, where)
    in_order = all(type(n) is int for n in kept) and kept == sorted(set(kept))
    if not in_order or (kept and not 0 <= kept[0] <= kept[-1] < group.units):
        raise SavedError(
            f"{where} ({group.name!r}) keeps units that repeat, are out of order or are not among "
            f"0..{group.units - 1}"
        )
    return group, tuple(kept)


def _tensor_infos(record: dict[str, Any], where: str) -> dict[str, TensorInfo]:
    found = {}
    for name, entry in record.items():
        place = f"{where}, {name[:80]!r}"
        try:
            entry = checked(entry, place, {"shape": list, "dtype": str})
        except RecordError as error:
            raise SavedError(str(error)[:400]) from None
        found[name] = TensorInfo.read(entry["shape"], entry["dtype"], place)
    return found


def _tensor_records(facts: Mapping[str, TensorInfo]) -> dict[str, Any]:
    return {name: {"shape": list(f.shape), "dtype": f.dtype} for name, f in facts.items()}


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _lines(value: Any) -> str:
    """An object or list with a line for each of its entries."""
    if isinstance(value, dict) and value:
        return "{\n" + ",\n".join(f" {_text(k)}: {_text(v)}" for k, v in value.items()) + "\n}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f" {_text(v)}" for v in value) + "\n]"
    return _text(value)


def model_card(description: Description, size: int) -> str:
    """The model card as Markdown; ``size`` is that of the tensors in bytes."""
    dense, small = description.parameters
    name = description.model.rpartition(".")[2]
    widths = "-".join(str(len(kept)) for kept in description.kept)
    rows = "\n".join(
        f"| {_cell(group.name)} | {group.units:,} | {len(kept):,} |"
        for group, kept in zip(description.groups, description.kept, strict=True)
    )
    metrics = "\n".join(
        f"- {_cell(key)}: {_cell(value)}" for key, value in description.metrics.items()
    )
    return f"""{CARD}
# {name}, {widths}

A `{description.model}` from which l0arm removed units by learned gates:
{small:,} of {dense:,} parameters are left ({100 * small / max(dense, 1):.1f} %), {size:,} bytes.

| group | units before | units left |
|---|---|---|
{rows}
{f"{chr(10)}{metrics}{chr(10)}" if metrics else ""}
## How to load it

```python
import l0arm
from {description.model.rpartition(".")[0]} import {name}

model = l0arm.load("path/of/this/folder", {name})  # or a function that returns the original model
```

`{name}()` must build the model as it was before units were removed; `l0arm.json` says which units
are left, and `model.safetensors` has the weights. Nothing in this folder is executed.
"""


def _cell(value: object) -> str:
    """Text that cannot break out of its line or cell."""
    return " ".join(str(value).split()).replace("|", "\\|").replace("`", "'")[:200]
