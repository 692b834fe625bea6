"""What a rule uses: the site it is called with, the trace it writes to, and the registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from l0arm.gating import Borrow, Dot, Norm, Pick, Route, Widen
from l0arm.gating.calls import MIXING
from l0arm.planning.atoms import Array, Atoms
from l0arm.planning.space import Factor, Space, simplified

INPUT = "an input of the model keeps its shape"


@dataclass(frozen=True, eq=False)
class Work:
    """Multiply-adds of one operation, and the factors of its index space that units can shrink."""

    macs: int
    factors: tuple[Array, ...]
    modules: frozenset[str] = frozenset()  # that it runs in


@dataclass(frozen=True, eq=False)
class Count:
    """Positions whose number an operation may have taken from an attribute of these modules."""

    modules: tuple[str, ...]
    atoms: Array
    attribute: str = ""  # known if torch's own module passes this attribute to the operator


@dataclass(frozen=True, eq=False)
class Size:
    """A size that a call of a forward has among its arguments, and what it counts."""

    module: str
    place: str
    argument: int
    factor: Factor | None  # the labels of the dimension, and of those split off with it
    dim: int


@dataclass(frozen=True, eq=False)
class Meeting:
    """An operand without units that meets units: the pick that leaves closed ones out."""

    pick: Pick  # its block is not known yet
    atoms: Array  # along the dimension


@dataclass(frozen=True, eq=False)
class Widened:
    """An operation that mixes units and may go on running over all of them."""

    widen: Widen  # its block is not known yet
    atoms: Array  # along the dimension


class Call(NamedTuple):
    """A call with sizes or operands in the forward of a module, as written there."""

    place: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Split:
    """A dimension that a view splits into several, which must then be cut along one of them."""

    factor: Factor
    where: str  # the operation, for reasons
    open_axis: int | None  # the axis whose size was written as -1


@dataclass(frozen=True, eq=False)
class Scored:
    """A softmax over units, or the choice of the largest: they may be experts."""

    route: Route
    atoms: Array  # along the dimension
    reason: str  # why they stay if they are no experts


@dataclass(frozen=True, eq=False)
class Within:
    """Positions within the heads of attention: of queries and keys, or of values."""

    atoms: Array
    modules: tuple[str, ...]
    dot: Dot | None = None  # the product of queries and keys; None: these are values
    default: bool = False  # it takes its scale from the width that it finds


@dataclass
class Trace:
    """Everything that the walk through a graph records."""

    refused: Mapping[str, str] = field(default_factory=dict)  # tensor -> why it is never cut
    outputs: tuple[str, ...] = ()  # those that keep their shape; empty means all
    atoms: Atoms = field(default_factory=Atoms)
    work: list[Work] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    meetings: list[Meeting] = field(default_factory=list)
    borrowed: dict[str, list[Borrow]] = field(default_factory=dict)  # by first name of the tensor
    norms: Mapping[str, Norm] = field(default_factory=dict)  # modules that may lose units
    normalised: list[tuple[Norm, Array]] = field(default_factory=list)  # over these positions
    widens: bool = False  # whether operations may go on running over all units
    widened: list[Widened] = field(default_factory=list)
    experts: bool = False  # whether units may be experts, among which a router chooses
    scored: list[Scored] = field(default_factory=list)
    chosen: list[Scored] = field(default_factory=list)
    head_dims: bool = False  # whether units are positions within heads, not whole heads
    heads: list[Array] = field(default_factory=list)  # positions of what views split into heads
    within: list[Within] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Site:
    """One operation of the graph, as its rule sees it.

    Attributes:
        trace: What the walk has recorded so far.
        op: Name of the operator without namespace and overload, e.g. ``view``.
        modules: Names of the modules it runs in, outermost first.
        shapes: Shapes of the tensors it returns.
        written: The operator with its literal sizes, e.g. ``view(-1, 112)``, for reasons.
        call: The call of the forward that this operation is, if that has sizes.
        operands: All values among its arguments.
        parts: Of a slice: start and stop of all slices of this value along the same dimension.
        scaled: Whether the call says by what products are scaled.
    """

    trace: Trace
    op: str
    modules: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    written: str = ""
    call: Call | None = None
    parts: tuple[tuple[int, int], ...] = ()
    operands: tuple[Space, ...] = ()
    scaled: bool = False

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
        """The operation and its module, for reasons."""
        module = self.modules[-1] if self.modules and self.modules[-1] else ""
        operation = self.written or self.op
        return f"{operation} in '{module}'" if module else operation

    def mixes(self) -> str:
        """The reason for a dimension over which the operation mixes units."""
        return f"{self.where} mixes the units"

    def record_count(self, atoms: Array, attribute: str = "") -> None:
        """Record that the operation may depend on the number of these positions."""
        self.trace.counts.append(Count(self.modules, atoms, attribute))

    def record_size(self, argument: int, x: Space, dim: int) -> None:
        """Record that an argument of the call is the size of this dimension of a value."""
        if self.call is not None and self.modules and argument < len(self.call.sizes):
            place = (self.modules[-1], self.call.place, argument)
            self.trace.sizes.append(Size(*place, x.at(dim), dim))

    def picks(self, operand: Space, dim: int, atoms: Array) -> bool:
        """Whether an operand without units along ``dim`` (< 0) can leave closed units out.

        Constants and inputs can, where the call is known.
        """
        known = [n for n, own in enumerate(self.operands) if own is operand]
        if self.call is None or not known or operand.fixed not in ("", INPUT) or not self.modules:
            return False
        if self.op in MIXING:
            return False
        pick = Pick(self.modules[-1], self.call.place, known[0], dim)
        self.trace.meetings.append(Meeting(pick, atoms))
        return True

    def passes_norm(self, x: Space, dims: set[int]) -> bool:
        """Whether units pass a mean over ``dims``, since a norm does it that may lose units.

        The norm and its positions are recorded.
        """
        norm = self.trace.norms.get(self.modules[-1] if self.modules else "")
        factor = simplified(self.atoms, x).at(len(x.shape) - 1)
        if norm is None or dims != {len(x.shape) - 1} or factor is None or len(factor.dims) > 1:
            return False
        self.trace.normalised.append((norm, factor.atoms))
        return True

    def runs_over_all(self, x: Space, dims: set[int], result: int | None = None) -> bool:
        """Whether an operation that mixes units along ``dims`` can go on running over all of them.

        ``result`` is the dimension of the result with the units, from the end. The operation and
        its positions are recorded.
        """
        mixed = [f for f in simplified(self.atoms, x).factors if set(f.dims) & dims]
        if not self.trace.widens or self.call is None or not self.modules:
            return False
        if self.op not in MIXING or not mixed or any(len(f.dims) > 1 for f in mixed):
            return False
        for factor in mixed:
            dim = factor.dims[0] - len(x.shape)
            widen = Widen(self.modules[-1], self.call.place, dim, result)
            self.trace.widened.append(Widened(widen, factor.atoms))
        return True

    def is_over_all(self, factor: Factor | None) -> bool:
        """Whether a weight's units were mixed by operations that run over all of them."""
        if factor is None:
            return False
        own = set(self.atoms.roots(factor.atoms).ravel().tolist())
        return any(own <= set(self.atoms.roots(w.atoms).tolist()) for w in self.trace.widened)

    def routed(self, x: Space, dim: int, chosen: int = 1) -> Scored | None:
        """A softmax or choice along ``dim`` as one among experts; None if it cannot be."""
        factor = simplified(self.atoms, x).at(dim)
        alone = factor is not None and len(factor.dims) == 1
        if factor is None or not alone or not self.trace.experts or self.call is None:
            return None
        route = Route(self.modules[-1], self.call.place, dim - len(x.shape), chosen)
        return Scored(route, factor.atoms, self.mixes())

    def record_within(self, atoms: Array, *operands: Space) -> None:
        """Record positions within heads: of values, or of the queries and keys multiplied here."""
        dot = None
        if operands:
            known = [n for n, own in enumerate(self.operands) if any(own is x for x in operands)]
            place = self.call.place if self.call is not None and known else ""
            dot = Dot(self.modules[-1], place, known[0] if known else 0)
        default = self.op == "scaled_dot_product_attention" and not self.scaled
        self.trace.within.append(Within(atoms, self.modules, dot, default))

    def record_work(self, macs: int, factors: Sequence[Array]) -> None:
        """Record what the operation costs."""
        self.trace.work.append(Work(macs, tuple(factors), frozenset(self.modules)))

    def pin(self, space: Space, reason: str) -> None:
        """Mark every unit of a value as never cut."""
        for factor in space.factors:
            self.atoms.pin(factor.atoms, reason)


Rule = Callable[..., Space | tuple[Space, ...]]
AnyRule = TypeVar("AnyRule", bound=Rule)
RULES: dict[str, Rule] = {}  # units touched by any operator that is not here stay ungated


class NotCovered(Exception):
    """Raised by a rule for arguments that it does not cover. The message says what it does cover.

    The operator then counts as one without a rule.
    """


def rule(*operators: str) -> Callable[[AnyRule], AnyRule]:
    """Register how units pass through operators.

    The decorated function is called with a ``Site`` and the operator's own arguments, with a
    ``Space`` in place of every tensor. It returns the ``Space`` of the result, or a tuple of them
    if the operator returns several tensors. It raises ``NotCovered`` for arguments it cannot treat.

    Args:
        *operators: Names such as ``"aten.relu"`` or ``"aten.relu.default"``. A name without an
            overload stands for all overloads and for the in-place variant.

    Returns:
        A decorator that registers a function and returns it unchanged.

    Example:
        >>> from l0arm.planning.rules import elementwise
        >>> register = rule("mylib.swish")(elementwise)
        >>> find("mylib.swish.default") is elementwise
        True
        >>> forget("mylib.swish")
    """

    def register(function: AnyRule) -> AnyRule:
        for name in operators:
            RULES[name] = function
        return function

    return register


def find(operator: str) -> Rule | None:
    """The rule of an operator, by its full name or else without overload and in-place mark."""
    name = operator.rpartition(".")[0] if operator.count(".") > 1 else operator
    return next((RULES[n] for n in (operator, name, name.removesuffix("_")) if n in RULES), None)


def forget(*operators: str) -> None:
    """Remove rules from the registry."""
    for name in operators:
        RULES.pop(name, None)


def spaces_in(*arguments: Any) -> list[Space]:
    """All values among an operator's arguments, also inside nested lists."""
    found: list[Space] = []
    for argument in arguments:
        if isinstance(argument, Space):
            found.append(argument)
        elif isinstance(argument, tuple | list):
            found += spaces_in(*argument)
    return found
