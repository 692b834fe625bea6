"""A plan: the groups of a model, how each is executed, and what is skipped and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from textwrap import wrap
from typing import Any, Literal, get_args

from torch import nn

from l0arm.gating import Group
from l0arm.gating.layout import resolve
from l0arm.gating.records import RecordError, checked, group_of, record_of
from l0arm.planning.picture import Layer, page

FORMAT, VERSION = "l0arm-plan", 1
WIDTH, NAME_WIDTH = 80, 34  # of the printed table, of its first column

ExecutionKind = Literal["as is", "patched", "replaced", "skipped", "masked"]


@dataclass(frozen=True)
class PlannedGroup:
    """A group, how it is executed, and what closing all its units would free.

    Attributes:
        group: The gates and the slices of tensors that they cut.
        execution: ``"as is"``; ``"patched"``, with integer attributes that count units;
            ``"replaced"``, in modules that can run with fewer units; ``"skipped"``, where the units
            are residual branches whose modules are not called; or ``"masked"``, where closed units
            are zeroed and nothing can be removed.
        weights: Parameters freed if all units go, 0 if masked.
        macs: Multiply-adds freed in one pass of the example, 0 if masked.
        replaces: Names of the modules to exchange for ones that run with fewer units.
        reason: Why the group is masked.

    Example:
        >>> import torch, l0arm
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> entry = l0arm.plan(net, torch.rand(1, 4)).planned[0]
        >>> entry.execution, entry.weights, entry.macs, entry.layers
        ('as is', 56, 48, ('0', '2'))
    """

    group: Group
    execution: ExecutionKind
    weights: int
    macs: int
    replaces: tuple[str, ...] = ()
    reason: str = ""

    @property
    def layers(self) -> tuple[str, ...]:
        """The modules that the group cuts, in the order of the network."""
        if self.group.branches:
            return tuple(name for branch in self.group.branches for name in branch.modules)
        pieces = (*self.group.makes, *self.group.counts, *self.group.reads)
        return tuple(dict.fromkeys(p.tensor.rpartition(".")[0] or p.tensor for p in pieces))


@dataclass(frozen=True)
class Skipped:
    """A layer whose units are not gated, and why.

    Example:
        >>> import torch, l0arm
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> l0arm.plan(net, torch.rand(1, 4)).skipped
        (Skipped(layer='2', reason='an output of the model keeps its shape'),)
    """

    layer: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """What ``l0arm.plan`` finds. Pass it to ``l0arm.sparsify`` as ``groups``.

    ``print(plan)`` shows the groups with what they can free, and what is skipped with the reason.

    Attributes:
        planned: The groups and how each is executed.
        skipped: Layers whose units are not gated.
        weights: Number of parameters of the whole model.
        macs: Multiply-adds of one pass of the example.
        outputs: Outputs that keep their shape, by key or number. Empty means all.
        layers: The network in its order, for ``to_html``.

    Example:
        >>> import torch, l0arm
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> found = l0arm.plan(net, torch.rand(1, 4))
        >>> print(found)
        1 groups, 8 units, in a model of 58 weights, 48 MACs
        group                               units     weights            MACs  execution
        0                                       8          56              48  as is
            2
        <BLANKLINE>
        not gated
        2
            an output of the model keeps its shape
        >>> gated = l0arm.sparsify(net, found.starting_at(0.95).with_floor(2), lam=1e-4)
    """

    planned: tuple[PlannedGroup, ...]
    skipped: tuple[Skipped, ...] = ()
    weights: int = 0
    macs: int = 0
    outputs: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups alone."""
        return tuple(entry.group for entry in self.planned)

    def starting_at(self, initial: float) -> Plan:
        """The same plan with gates that are open with this probability at the start."""
        return self._each(lambda group: replace(group, initial=initial))

    def with_floor(self, floor: int | float) -> Plan:
        """The same plan with a number of units that every group keeps.

        Args:
            floor: A count such as 8 (of smaller groups: all units), or a share between 0 and 1.

        Returns:
            A plan whose groups keep at least so many units.

        Raises:
            ValueError: If ``floor`` is neither.

        Example:
            >>> import torch, l0arm
            >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
            >>> found = l0arm.plan(net, torch.rand(1, 4))
            >>> found.with_floor(3).groups[0].floor, found.with_floor(0.5).groups[0].floor
            (3, 4)
        """
        count = isinstance(floor, int) and not isinstance(floor, bool) and floor >= 0
        share = isinstance(floor, float) and 0.0 < floor < 1.0
        if not (count or share):
            raise ValueError(
                "floor is a count of units, e.g. 8, or a share of them above 0 and below 1; "
                f"got {floor!r}"
            )

        def floored(group: Group) -> Group:
            least = floor if isinstance(floor, int) else -int(-floor * group.units // 1)
            return replace(group, floor=min(max(least, group.chosen), group.units))

        return self._each(floored)

    def _each(self, change: Callable[[Group], Group]) -> Plan:
        changed = [replace(entry, group=change(entry.group)) for entry in self.planned]
        return replace(self, planned=tuple(changed))

    def check(self, model: nn.Module) -> None:
        """Raise ``ValueError`` unless every group fits the model's tensors."""
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
        record = {
            "format": FORMAT,
            "version": VERSION,
            "weights": self.weights,
            "macs": self.macs,
            "outputs": list(self.outputs),
            "groups": entries,
            "skipped": [asdict(entry) for entry in self.skipped],
            "layers": [asdict(layer) for layer in self.layers],
        }
        return json.dumps(record, indent=1)

    def to_html(self) -> str:
        """The plan as a picture: one HTML page that loads nothing from elsewhere.

        It shows the layers in the order of the network and what feeds each, the groups in colours,
        what each can free, and why other layers stay.

        Example:
            >>> import torch, l0arm
            >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
            >>> page = l0arm.plan(net, torch.rand(1, 4)).to_html()
            >>> "an output of the model keeps its shape" in page
            True
        """
        return page(self)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """A plan from the text of ``to_json``, possibly edited.

        Groups may be removed, and ``initial``, ``floor`` and names changed. Whether slices fit a
        model is checked by ``sparsify``, or by ``check``.

        Raises:
            ValueError: If the text is not such a plan. The message names the entry and the field.

        Example:
            >>> import torch, l0arm
            >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
            >>> found = l0arm.plan(net, torch.rand(1, 4))
            >>> Plan.from_json(found.to_json()) == found
            True
        """
        record = _document(text)
        entries = [_planned(e, f"group {n}") for n, e in enumerate(record["groups"])]
        skipped = [
            Skipped(**checked(e, f"skipped {n}", {"layer": str, "reason": str}))
            for n, e in enumerate(record["skipped"])
        ]
        outputs = tuple(record["outputs"])
        layers = tuple(_layer(e, f"layer {n}") for n, e in enumerate(record["layers"]))
        weights, macs = record["weights"], record["macs"]
        return cls(tuple(entries), tuple(skipped), weights, macs, outputs, layers)

    def __str__(self) -> str:
        """A table that fits 80 columns."""
        units = sum(group.units for group in self.groups)
        lines = [
            f"{len(self.planned)} groups, {units:,} units, in a model of {self.weights:,} weights, "
            f"{self.macs:,} MACs",
            f"{'group':<{NAME_WIDTH}} {'units':>6} {'weights':>11} {'MACs':>15}  execution",
        ]
        for entry in self.planned:
            lines += _rows(entry)
        if any(entry.execution == "masked" for entry in self.planned):
            lines += _wrapped("masked: closed units are zeroed, compaction frees nothing of them")
        if self.skipped:
            lines += ["", "not gated"]
            by_reason = sorted(self.skipped, key=lambda skipped: skipped.reason)
            for reason, entries in groupby(by_reason, key=lambda skipped: skipped.reason):
                lines += _wrapped(", ".join(skipped.layer for skipped in entries))
                lines += _wrapped(reason, "    ")
        return "\n".join(lines)


def _rows(entry: PlannedGroup) -> list[str]:
    """The lines of the table for one group: figures, the other layers it cuts, why it is masked."""
    name, units = entry.group.name, entry.group.units
    figures = f"{units:>6} {entry.weights:>11,} {entry.macs:>15,}  {entry.execution}"
    head = f"{name:<{NAME_WIDTH}} {figures}"
    lines = [head] if len(head) <= WIDTH else [name[:WIDTH], f"{'':<{NAME_WIDTH}} {figures}"]
    lines += _wrapped(", ".join(layer for layer in entry.layers if layer != name), "    ")
    return lines + _wrapped(f"masked: {entry.reason}" if entry.reason else "", "    ")


def _wrapped(text: str, indent: str = "") -> list[str]:
    """Lines of at most 80 columns. Words that are longer are broken."""
    return wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


def _document(text: str) -> dict[str, Any]:
    """The record of a plan, with its outermost fields checked."""
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise RecordError(f"this is not JSON: {error}") from None
    fields = {"format": str, "version": int, "groups": list}
    optional = {"skipped": (list, []), "weights": (int, 0), "macs": (int, 0)}
    optional |= {"outputs": (list, []), "layers": (list, [])}
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


def _layer(entry: Any, where: str) -> Layer:
    """A layer of the picture from its record; ``where`` names it in errors."""
    fields = {"name": str, "kind": str, "weights": int, "macs": int, "inputs": list, "join": bool}
    own = checked(entry, where, fields)
    wrong = [name for name in own["inputs"] if not isinstance(name, str)]
    if wrong:
        raise RecordError(f"{where}: inputs must be names, got {wrong[0]!r}")
    return Layer(**{**own, "inputs": tuple(own["inputs"])})


def _planned(entry: Any, where: str) -> PlannedGroup:
    """A group of the plan from its record; ``where`` names it in errors."""
    if not isinstance(entry, dict):
        raise RecordError(f"{where} must be an object, got {entry!r}")
    optional = {"execution": (str, "as is"), "replaces": (list, []), "weights": (int, 0)}
    optional |= {"macs": (int, 0), "reason": (str, "")}
    own = {key: entry[key] for key in optional if key in entry}
    rest = {key: value for key, value in entry.items() if key not in optional}
    own = checked(own, where, {}, optional)
    kinds = get_args(ExecutionKind)
    if own["execution"] not in kinds:
        raise RecordError(
            f"{where}: execution must be one of {', '.join(kinds)}; got {own['execution']!r}"
        )
    group = group_of(rest, where)
    own["replaces"] = tuple(own["replaces"])
    return PlannedGroup(group, **own)
