"""Serialization of groups as JSON records. Every field is validated on reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from difflib import get_close_matches
from types import NoneType
from typing import Any

from l0arm.gating.group import (
    Borrow,
    Branch,
    Dot,
    Group,
    Norm,
    Patch,
    Pick,
    Resize,
    Route,
    Slice,
    Widen,
)

Kind = type | tuple[type, ...]
# Parts of a group that are written as they are.
PLAIN = ("patches", "resizes", "picks", "borrows", "widens", "routes", "dots")


class RecordError(ValueError):
    """A record with a missing, unknown or malformed field."""


def record_of(group: Group) -> dict[str, Any]:
    """A group as a record, without fields that have their default."""
    record: dict[str, Any] = {"name": group.name, "units": group.units}
    record |= {"initial": group.initial, "floor": group.floor}
    for key in ("reads", "makes", "counts"):
        pieces = getattr(group, key)
        if pieces:
            record[key] = [_slice_record(piece) for piece in pieces]
    if group.select is not None:
        record["select"] = _slice_record(group.select)
    for key in PLAIN:
        parts = getattr(group, key)
        if parts:
            record[key] = [asdict(part) for part in parts]
    if group.norms:
        record["norms"] = [_norm_record(norm) for norm in group.norms]
    if group.branches:
        record["branches"] = [
            {"modules": list(branch.modules), "returns": [list(parts) for parts in branch.returns]}
            for branch in group.branches
        ]
    return record


def _norm_record(norm: Norm) -> dict[str, Any]:
    record: dict[str, Any] = {"module": norm.module}
    if norm.epsilon is not None:
        record["epsilon"] = norm.epsilon
    return {**record, "offset": norm.offset} if norm.offset else record


def _slice_record(piece: Slice) -> dict[str, Any]:
    record: dict[str, Any] = {"tensor": piece.tensor, "dim": piece.dim}
    if piece.index is not None:
        record["index"] = [list(unit) for unit in piece.index]
    elif piece.block != 1:
        record["block"] = piece.block
    return record


def group_of(record: Any, where: str) -> Group:
    """The group of a record. Group's own checks apply too."""
    parts = ["reads", "makes", "counts", "patches", "resizes", "picks", "borrows"]
    parts += ["norms", "widens", "branches", "routes", "dots"]
    lists: dict[str, tuple[Kind, Any]] = {key: (list, []) for key in parts}
    numbers: dict[str, tuple[Kind, Any]] = {"initial": (float, 0.5), "floor": (int, 0)}
    optional = {**numbers, **lists, "select": (dict, None)}
    fields = checked(record, where, {"name": str, "units": int}, optional)
    where = f"{where} ({fields['name']!r})"
    for key in ("reads", "makes", "counts"):
        fields[key] = tuple(_slice_of(s, f"{where}, {key} {n}") for n, s in enumerate(fields[key]))
    if fields["select"] is not None:
        fields["select"] = _slice_of(fields["select"], f"{where}, select")
    wanted: dict[str, Kind] = {"module": str, "attribute": str}
    patches = [
        checked(p, f"{where}, patch {n}", wanted, {"per_unit": (int, 1)})
        for n, p in enumerate(fields["patches"])
    ]
    optional = {"epsilon": (str, None), "offset": (float, 0.0)}
    norms = [
        checked(norm, f"{where}, norm {n}", {"module": str}, optional)
        for n, norm in enumerate(fields["norms"])
    ]
    wanted = {"module": str, "place": str, "argument": int}
    fields["resizes"] = tuple(
        Resize(**checked(resize, f"{where}, resize {n}", wanted, {"per_unit": (int, 0)}))
        for n, resize in enumerate(fields["resizes"])
    )
    wanted = {"module": str, "place": str, "operand": int, "dim": int}
    fields["picks"] = tuple(
        Pick(**checked(pick, f"{where}, pick {n}", wanted, {"block": (int, 1)}))
        for n, pick in enumerate(fields["picks"])
    )
    wanted = {"module": str, "place": str, "dim": int}
    none: dict[str, tuple[Kind, Any]] = {"result": ((int, NoneType), None)}
    fields["widens"] = tuple(
        Widen(**checked(w, f"{where}, widen {n}", wanted, {"block": (int, 1), **none}))
        for n, w in enumerate(fields["widens"])
    )
    fields["routes"] = tuple(
        Route(**checked(route, f"{where}, route {n}", wanted, {"chosen": (int, 1)}))
        for n, route in enumerate(fields["routes"])
    )
    wanted = {"module": str, "place": str}
    fields["dots"] = tuple(
        Dot(
            **checked(
                dot, f"{where}, dot {n}", wanted, {"operand": (int, 0), "counted": (bool, False)}
            )
        )
        for n, dot in enumerate(fields["dots"])
    )
    wanted = {"module": str, "tensor": str}
    fields["borrows"] = tuple(
        Borrow(**checked(borrow, f"{where}, borrow {n}", wanted))
        for n, borrow in enumerate(fields["borrows"])
    )
    fields["norms"] = tuple(Norm(**norm) for norm in norms)
    fields["branches"] = tuple(
        _branch_of(branch, f"{where}, branch {n}") for n, branch in enumerate(fields["branches"])
    )
    try:
        fields["patches"] = tuple(Patch(**patch) for patch in patches)
        return Group(**fields)
    except ValueError as error:
        raise RecordError(f"{where}: {error}") from None


def _branch_of(record: Any, where: str) -> Branch:
    fields = checked(record, where, {"modules": list, "returns": list})
    modules, returns = fields["modules"], fields["returns"]
    listed = all(isinstance(parts, list) for parts in returns)
    texts = [*modules, *(part for parts in returns for part in parts)] if listed else [None]
    if not all(isinstance(text, str) for text in texts) or len(modules) != len(returns):
        raise RecordError(
            f"{where}: modules must list names, and returns a list of names for each of them"
        )
    return Branch(tuple(modules), tuple(tuple(parts) for parts in returns))


def _slice_of(record: Any, where: str) -> Slice:
    optional = {"block": (int, 1), "index": (list, None)}
    fields = checked(record, where, {"tensor": str, "dim": (int, NoneType)}, optional)
    if fields["index"] is not None:
        fields["index"] = tuple(_positions(unit, where) for unit in fields["index"])
    try:
        return Slice(**fields)
    except ValueError as error:
        raise RecordError(f"{where}: {error}") from None


def _positions(unit: Any, where: str) -> tuple[int, ...]:
    if not isinstance(unit, list) or not all(type(n) is int for n in unit):
        raise RecordError(f"{where}: index lists positions for each unit, got {unit!r}")
    return tuple(unit)


def checked(
    record: Any,
    where: str,
    required: Mapping[str, Kind],
    optional: Mapping[str, tuple[Kind, Any]] | None = None,
) -> dict[str, Any]:
    """The record with defaults filled in, or an error that names the place and the field."""
    optional = optional or {}
    if not isinstance(record, dict):
        raise RecordError(f"{where} must be an object, got {record!r}")
    kinds = {**required, **{key: kind for key, (kind, _) in optional.items()}}
    for key, value in record.items():
        if key not in kinds:
            near = get_close_matches(key[:80], kinds, 1, 0.0)
            raise RecordError(
                f"{where} has an unknown field {key[:80]!r}; did you mean {near[0]!r}?"
            )
        if not _is(value, kinds[key]):
            raise RecordError(f"{where}: {key} must be {_kind_name(kinds[key])}, got {value!r}")
    missing = [key for key in required if key not in record]
    if missing:
        raise RecordError(f"{where} lacks the field {missing[0]!r}")
    return {**{key: default for key, (_, default) in optional.items()}, **record}


def _kind_name(kind: Kind) -> str:
    """The name of a kind, such as 'int or null'."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join("null" if k is NoneType else k.__name__ for k in kinds)


def _is(value: Any, kind: Kind) -> bool:
    """JSON writes 1 for 1.0, and True is no number here."""
    if isinstance(kind, tuple):
        return any(_is(value, one) for one in kind)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is kind
