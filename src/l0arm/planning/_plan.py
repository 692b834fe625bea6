"""A plan: which groups a model has, how each is executed, and what is left alone and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from torch import nn

from l0arm.gating import Group
from l0arm.gating.layout import resolve
from l0arm.gating.records import RecordError, checked, group_of, record_of
from l0arm.planning.table import Row, table

FORMAT, VERSION = "l0arm-plan", 1

How = Literal["as is", "patched", "replaced", "masked"]


@dataclass(frozen=True)
class PlannedGroup:
    """A group with how it is executed and what closing all its units would free."""

    group: Group
    execution: How
    weights: int  # parameters freed if all its units go; 0 if masked
    macs: int  # multiply-adds of one pass of the example, likewise
    replaces: tuple[str, ...] = ()  # modules to exchange for ones that run with fewer units
    reason: str = ""  # why it is masked

    @property
    def layers(self) -> tuple[str, ...]:
        """The modules it cuts, in the order of the network."""
        pieces = (*self.group.makes, *self.group.counts, *self.group.reads)
        return tuple(dict.fromkeys(p.tensor.rpartition(".")[0] or p.tensor for p in pieces))


@dataclass(frozen=True)
class Skipped:
    """A layer whose units are not gated, and why."""

    layer: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """What ``l0arm.plan`` finds; pass it to ``l0arm.sparsify`` in place of groups."""

    planned: tuple[PlannedGroup, ...]
    skipped: tuple[Skipped, ...] = ()
    weights: int = 0  # parameters of the whole model
    macs: int = 0  # multiply-adds of one pass of the example
    outputs: tuple[str, ...] = ()  # those that keep their shape, by key or number; all if empty

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups, ready for ``sparsify``."""
        return tuple(entry.group for entry in self.planned)

    def starting_at(self, initial: float) -> Plan:
        """The same plan with gates that start open with this probability."""
        return self._each(lambda group: replace(group, initial=initial))

    def with_floor(self, floor: int | float) -> Plan:
        """At least this many units of every group stay, or this share of them if below 1."""
        _check_floor(floor)

        def floored(group: Group) -> Group:
            least = floor if isinstance(floor, int) else -int(-floor * group.units // 1)
            return replace(group, floor=min(least, group.units))

        return self._each(floored)

    def _each(self, change: Callable[[Group], Group]) -> Plan:
        changed = [replace(entry, group=change(entry.group)) for entry in self.planned]
        return replace(self, planned=tuple(changed))

    def check(self, model: nn.Module) -> None:
        """Raise unless every group fits the model's tensors."""
        resolve(model, self.groups)

    def to_json(self) -> str:
        """The plan as text that can be read and edited by hand."""
        entries = [
            {
                **record_of(e.group),
                "execution": e.execution,
                "replaces": list(e.replaces),
                "weights": e.weights,
                "macs": e.macs,
                **({"reason": e.reason} if e.reason else {}),
            }
            for e in self.planned
        ]
        skipped = [asdict(entry) for entry in self.skipped]
        head = {"format": FORMAT, "version": VERSION, "weights": self.weights, "macs": self.macs}
        told = {"outputs": list(self.outputs), "groups": entries, "skipped": skipped}
        return json.dumps({**head, **told}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """A plan from what ``to_json`` wrote, possibly edited; errors name the entry and the field.

        Groups may be taken out, and ``initial``, ``floor`` and names changed. Whether slices fit a
        model is checked by ``sparsify``, or by ``check``.
        """
        record = _document(text)
        entries = [_planned(e, f"group {n}") for n, e in enumerate(record["groups"])]
        skipped = [
            Skipped(**checked(e, f"skipped {n}", {"layer": str, "reason": str}))
            for n, e in enumerate(record["skipped"])
        ]
        outputs = tuple(record["outputs"])
        return cls(tuple(entries), tuple(skipped), record["weights"], record["macs"], outputs)

    def __str__(self) -> str:
        rows = [
            Row(e.group.name, e.group.units, e.weights, e.macs, e.execution, e.layers, e.reason)
            for e in self.planned
        ]
        return table(rows, [(s.layer, s.reason) for s in self.skipped], self.weights, self.macs)


def _check_floor(floor: object) -> None:
    count = isinstance(floor, int) and not isinstance(floor, bool) and floor >= 0
    share = isinstance(floor, float) and 0.0 < floor < 1.0
    if not (count or share):
        raise ValueError(
            "floor is a count of units, e.g. 8, or a share of them above 0 and below 1; "
            f"got {floor!r}"
        )


def _document(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise RecordError(f"this is not JSON: {error}") from None
    fields = {"format": str, "version": int, "groups": list}
    optional = {"skipped": (list, []), "weights": (int, 0), "macs": (int, 0)}
    optional |= {"outputs": (list, [])}
    record = checked(record, "the plan", fields, optional)
    wrong = [name for name in record["outputs"] if not isinstance(name, str)]
    if wrong:
        raise RecordError(f"the plan: outputs must be names, got {wrong[0]!r}")
    if (record["format"], record["version"]) != (FORMAT, VERSION):
        raise RecordError(
            f"expected format {FORMAT!r}, version {VERSION}; "
            f"got {record['format']!r}, version {record['version']}"
        )
    return record


def _planned(entry: Any, where: str) -> PlannedGroup:
    if not isinstance(entry, dict):
        raise RecordError(f"{where} must be an object, got {entry!r}")
    optional = {"execution": (str, "as is"), "replaces": (list, []), "weights": (int, 0)}
    optional |= {"macs": (int, 0), "reason": (str, "")}
    own = {key: entry[key] for key in optional if key in entry}
    rest = {key: value for key, value in entry.items() if key not in optional}
    own = checked(own, where, {}, optional)
    if own["execution"] not in get_args(How):
        told = ", ".join(get_args(How))
        raise RecordError(f"{where}: execution must be one of {told}; got {own['execution']!r}")
    group = group_of(rest, where)
    own["replaces"] = tuple(own["replaces"])
    return PlannedGroup(group, **own)
