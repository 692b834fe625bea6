"""The site of a rule: one operation of the graph, and what a rule may do there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from l0arm.planning.atoms import Array, Atoms
from l0arm.planning.space import Factor, Space


@dataclass(frozen=True, eq=False)
class Work:
    """Multiply-adds of one operation, and the factors of its index space that units can shrink."""

    macs: int
    factors: tuple[Array, ...]


@dataclass(frozen=True, eq=False)
class Count:
    """An array whose length an operation may have taken from an attribute of these modules."""

    modules: tuple[str, ...]
    atoms: Array
    attribute: str = ""  # of torch's own module, if the operator takes the number from there


@dataclass
class Trace:
    """What the walk through a graph gathers, and what it was told to leave alone."""

    refused: Mapping[str, str] = field(default_factory=dict)  # the reason, by tensor
    outputs: tuple[str, ...] = ()  # those that keep their shape; all if empty
    atoms: Atoms = field(default_factory=Atoms)
    work: list[Work] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    joint: list[tuple[Factor, str, int | None]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Site:
    """One operation: its name, the modules it runs in (outermost first), the shapes it returns."""

    trace: Trace
    op: str
    modules: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    written: str = ""  # with its sizes, for reasons

    @property
    def atoms(self) -> Atoms:
        """All atoms of the model."""
        return self.trace.atoms

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the only result."""
        return self.shapes[0]

    @property
    def where(self) -> str:
        """For reasons: the operation and its module."""
        module = self.modules[-1] if self.modules and self.modules[-1] else ""
        operation = self.written or self.op
        return f"{operation} in '{module}'" if module else operation

    def mixes(self) -> str:
        """The reason for a dimension over which an operation mixes units."""
        return f"{self.where} mixes the units"

    def counts(self, atoms: Array, attribute: str = "") -> None:
        """Tell that the operation may depend on how many positions there are."""
        self.trace.counts.append(Count(self.modules, atoms, attribute))

    def works(self, macs: int, factors: Sequence[Array]) -> None:
        """Tell what the operation costs."""
        self.trace.work.append(Work(macs, tuple(factors)))

    def pin(self, space: Space, reason: str) -> None:
        """Nothing of this value is ever cut."""
        for factor in space.factors:
            self.atoms.pin(factor.atoms, reason)
