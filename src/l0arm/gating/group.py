"""Where z sits: a group is a vector of gates and the slices of tensors that it cuts (Sec. 3.4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor


@dataclass(frozen=True)
class Slice:
    """The positions of each unit along one dimension of a named tensor.

    Attributes:
        tensor: Name of a parameter or buffer of the model.
        dim: The dimension. None: unit j is element j of the tensor (a gate per weight).
        block: Unit j owns the positions ``j * block`` to ``(j + 1) * block - 1`` (block = 16 for a
            flattened 4 x 4 map).
        index: The positions of every unit, where they are not consecutive blocks.

    Example:
        >>> Slice("fc1.weight", dim=1, block=2).positions(units=2, size=4)
        ((0, 1), (2, 3))
    """

    tensor: str
    dim: int | None
    block: int = 1
    index: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.block, int) or self.block < 1:
            raise ValueError(
                f"a Slice of '{self.tensor}' has block={self.block!r}; it must be an integer >= 1"
            )
        if self.dim is None and (self.block != 1 or self.index is not None):
            raise ValueError(
                f"a Slice of '{self.tensor}' with dim=None gates every element on its own, but got "
                f"block={self.block}, index={self.index}; leave them out, or name a dim"
            )

    def positions(self, units: int, size: int) -> tuple[tuple[int, ...], ...]:
        """The positions of every unit, checked against the size of the dimension."""
        if self.index is not None:
            _check_index(self, units, size)
            return self.index
        if units * self.block != size:
            raise ValueError(
                f"has {units} units of block {self.block}, that is {units * self.block} positions, "
                f"but {self.where} has {size}; check units and Slice.block "
                "(a flattened 4 x 4 map has block 16), or give Slice.index"
            )
        return _blocks(units, self.block)

    @property
    def positions_per_unit(self) -> int:
        """Positions of each unit. Where units differ: the greatest common divisor."""
        return self.block if self.index is None else math.gcd(*(len(unit) for unit in self.index))

    @property
    def where(self) -> str:
        """The dimension and tensor, for messages."""
        return f"'{self.tensor}'" if self.dim is None else f"dim {self.dim} of '{self.tensor}'"


@dataclass(frozen=True)
class Patch:
    """An integer attribute of a module that counts units, such as ``num_heads``.

    Attributes:
        module: Name of the module.
        attribute: Name of the attribute.
        per_unit: What the attribute loses for each closed unit.
    """

    module: str
    attribute: str
    per_unit: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.per_unit, int) or self.per_unit < 1:
            raise ValueError(
                f"a Patch of '{self.module}.{self.attribute}' has per_unit={self.per_unit!r}; it "
                "must be an integer >= 1"
            )


@dataclass(frozen=True)
class Resize:
    """A size in the code of a forward that counts units, such as C of ``reshape(B, N, C)``.

    Attributes:
        module: Name of the module whose forward makes the call.
        place: Where the call is: for every function on the way, the innermost first, the line
            within it and the column at which the call ends (``"Attention.forward+4:47"``).
        argument: Which of its sizes counts the units, from 0.
        per_unit: How many positions of one unit the size counts. A size that is not that of all
            units was taken from what is cut already, and stays. 0: not known.
    """

    module: str
    place: str
    argument: int
    per_unit: int = 0


@dataclass(frozen=True)
class Pick:
    """An operand that meets the units and holds a position for every one of them, closed or not.

    It is a constant or an input, such as the biases of all heads that are added to scores. What
    belongs to closed units is left out before the operation.

    Attributes:
        module: Name of the module whose forward has the operation.
        place: Where the operation is, as in ``Resize``.
        operand: Which of its tensors, from 0.
        dim: The dimension with the units, from the end (-1 is the last).
        block: Positions of one unit, which are side by side. All units may repeat.
    """

    module: str
    place: str
    operand: int
    dim: int
    block: int = 1


@dataclass(frozen=True)
class Borrow:
    """A tensor that a forward reads without calling the module that holds it.

    It is cut for the length of the call of ``module``, not only while its own module runs.

    Attributes:
        module: Name of the module whose forward reads the tensor; it contains the tensor's own.
        tensor: Name of the tensor.
    """

    module: str
    tensor: str


@dataclass(frozen=True)
class Norm:
    """A module that normalises over the units of a group, dividing by their full number n.

    A LayerNorm is replaced by one that goes on dividing by n. An RMSNorm over the k units that
    are left is a plain one, whose weight is multiplied by sqrt(n/k) and its epsilon by n/k.

    Attributes:
        module: Name of the module.
        epsilon: Of an RMSNorm: the attribute that holds its epsilon. None: it is a LayerNorm.
        offset: What the forward of an RMSNorm adds to its weight.
    """

    module: str
    epsilon: str | None = None
    offset: float = 0.0


@dataclass(frozen=True)
class Widen:
    """An operation that mixes the units of a group, and goes on running over all of them.

    Its operand gets zeros for closed units. Of its result, what belongs to them is left out. So a
    weight is standardised over its full width, and a convolution along the channels meets the same
    neighbours.

    Attributes:
        module: Name of the module whose forward has the operation.
        place: Where the operation is, as in ``Resize``.
        dim: The dimension of its first tensor with the units, from the end (-1 is the last).
        result: The dimension of its result with the units, from the end. None: it has none.
        block: Positions of one unit, which are side by side. All units may repeat.
    """

    module: str
    place: str
    dim: int
    result: int | None = None
    block: int = 1


@dataclass(frozen=True)
class Branch:
    """A residual branch f of x + z f(x): closed, its modules are not called.

    Each module then returns zeros of the shape of its input, so that x + 0 is left.

    Attributes:
        modules: Names of the modules that compute f and nothing else.
        returns: What each module returns: () for one tensor; for a tuple of several values its
            parts, ``"zeros"``, ``"none"``, or the name of the argument that is passed through.
    """

    modules: tuple[str, ...]
    returns: tuple[tuple[str, ...], ...]

    def holds(self, name: str) -> bool:
        """Whether a module or tensor, by its name, is one of these modules or inside of one."""
        return any(name == own or name.startswith(f"{own}.") for own in self.modules)


@dataclass(frozen=True)
class Route:
    """An operation in which units compete, as the experts of a mixture do for a token.

    It is the softmax over the scores of all units, or the choice of the largest ones. A closed unit
    is never chosen: its score is the smallest number there is.

    Attributes:
        module: Name of the module whose forward has the operation.
        place: Where the operation is, as in ``Resize``.
        dim: The dimension of the scores with the units, from the end (-1 is the last).
        chosen: How many units are chosen. At least so many stay open.
    """

    module: str
    place: str
    dim: int
    chosen: int = 1


@dataclass(frozen=True)
class Dot:
    """A product of queries and keys that sums over the units, which are positions within a head.

    Attributes:
        module: Name of the module whose forward has the product.
        place: Where the product is, as in ``Resize``. Empty: not known.
        operand: The first of its tensors that has the units, from 0.
        counted: Whether the forward divides by the root of the width that it finds. It goes on
            dividing by the root of the full width then.
    """

    module: str
    place: str
    operand: int = 0
    counted: bool = False


@dataclass(frozen=True)
class Group:
    """One vector of gates, and the tensors that it cuts (Sec. 3.4).

    A closed unit is absent from every weight that *reads* it. What computes it then does not
    matter, so the rows that *make* it are dropped too. Nothing between the two may mix units, but
    for the ``norms`` and ``widens``. With these, a unit is closed where it is made: what makes it
    is zero, and they count it as a zero. The gates must then be 0 or 1.

    With ``routes``, every unit is an expert of a mixture. Closed, it is never chosen. ``makes`` has
    its row of the router and ``reads`` its own weights. The gates must be 0 or 1, too.

    With ``dots``, every unit is a position within all heads of attention. Closed, it adds nothing
    to the product of queries and keys, since the queries' rows are zero: they are among ``reads``.

    With ``branches``, every unit is a residual branch, and ``reads`` has all parameters of its
    modules: with zeros for all of them, a branch is zero. The gates must be 0 or 1, too.

    Attributes:
        name: Unique name, used in messages, checkpoints and plans.
        units: Number of gates.
        reads: The weights that consume the units. Never empty.
        makes: The producer's rows, biases, batch-norm parameters and buffers. With neither
            ``makes`` nor ``select``, closed units are zeroed and nothing is dropped.
        counts: The |g| weights of Eq. 17 and 18, without biases. Left out: the weights in
            ``makes``, or else those in ``reads``.
        select: Module (and dimension) whose input is gathered, where gates are finer than what
            the producer can drop.
        patches: Integer attributes that count units.
        resizes: Sizes in the code of a forward that count units.
        picks: Constants and inputs that meet the units, of which closed units are left out.
        borrows: Tensors that a forward reads without calling the module that holds them.
        norms: LayerNorm and RMSNorm modules over the units, as those of a residual stream. What
            makes the units is then zeroed too, and ``makes`` has the weights of the norms.
        widens: Other operations that mix the units and go on running over all of them.
        branches: The residual branch of every unit, if the units are branches.
        routes: Operations in which the units compete, if the units are experts.
        dots: Products of queries and keys over the units, if the units are positions in heads.
        initial: Mean of g(phi) at the start (Sec. 5.1).
        floor: z-bar leaves at least so many units open, the most probable ones.

    Example:
        >>> reads, makes = Slice("fc2.weight", dim=1), Slice("fc1.weight", dim=0)
        >>> Group("hidden", 4, reads=(reads,), makes=(makes,)).drops
        True
    """

    name: str
    units: int
    reads: tuple[Slice, ...]
    makes: tuple[Slice, ...] = ()
    counts: tuple[Slice, ...] = ()
    select: Slice | None = None
    patches: tuple[Patch, ...] = ()
    resizes: tuple[Resize, ...] = ()
    picks: tuple[Pick, ...] = ()
    borrows: tuple[Borrow, ...] = ()
    norms: tuple[Norm, ...] = ()
    widens: tuple[Widen, ...] = ()
    branches: tuple[Branch, ...] = ()
    routes: tuple[Route, ...] = ()
    dots: tuple[Dot, ...] = ()
    initial: float = 0.5
    floor: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.units, int) or self.units < 1:
            raise ValueError(
                f"group '{self.name}' has {self.units!r} units; a group needs at least 1"
            )
        kinds = {"reads": Slice, "makes": Slice, "counts": Slice, "patches": Patch, "norms": Norm}
        kinds |= {"resizes": Resize, "picks": Pick, "borrows": Borrow, "branches": Branch}
        kinds |= {"routes": Route, "widens": Widen, "dots": Dot}
        for name, kind in kinds.items():
            if not all(isinstance(s, kind) for s in _as_tuple(getattr(self, name))):
                raise TypeError(
                    f"group '{self.name}': {name} must be a tuple of {kind.__name__}, got "
                    f"{getattr(self, name)!r}; write {name}=({kind.__name__}(...),)"
                )
        if not self.reads:
            raise ValueError(
                f"group '{self.name}' has no reads: a unit is closed in the weights that read it; "
                "name at least one, e.g. reads=(Slice('next.weight', dim=1),)"
            )
        if self.branches and (len(self.branches) != self.units or self.makes or self.select):
            raise ValueError(
                f"group '{self.name}' has {self.units} units and {len(self.branches)} branches; "
                "give one Branch per unit, all their parameters as reads, and no makes or select"
            )
        if not self.chosen <= self.units or (self.routes and self.floor < self.chosen):
            raise ValueError(
                f"group '{self.name}' has {self.units} units of which a router chooses "
                f"{self.chosen}, and floor={self.floor!r}; set floor to at least {self.chosen}"
            )
        if not 0 <= self.floor <= self.units:
            raise ValueError(
                f"group '{self.name}' is to keep at least {self.floor!r} of its {self.units} "
                "units; floor lies between 0 and units"
            )
        if not 0.0 < self.initial < 1.0:
            raise ValueError(
                f"group '{self.name}' starts at keep probability {self.initial!r}, but it must lie "
                "strictly between 0 and 1; use e.g. 0.95 for nearly open"
            )

    @property
    def drops(self) -> bool:
        """Whether closed units are dropped. Without makes, select, branches they are zeroed."""
        return bool(self.makes or self.branches) or self.select is not None

    @property
    def closes_makers(self) -> bool:
        """Whether units are closed where they are made, too, since something counts them."""
        return bool(self.mixing)

    @property
    def mixing(self) -> tuple[str, ...]:
        """The modules that mix the units and go on counting all of them."""
        norms = [norm.module for norm in self.norms]
        return tuple(norms + [widen.module for widen in self.widens])

    @property
    def chosen(self) -> int:
        """How many units a router chooses; 0 if there is none."""
        return max((route.chosen for route in self.routes), default=0)

    def units_for(self, multiple: int) -> int:
        """The number of units whose positions are a multiple of ``multiple`` in every tensor.

        Example:
            >>> Group("heads", 4, reads=(Slice("out.weight", 1, block=4),)).units_for(8)
            2
        """
        if self.branches or self.routes:
            return 1
        pieces = (*self.reads, *self.makes)
        return multiple // math.gcd(multiple, *(p.positions_per_unit for p in pieces))


def _as_tuple(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (None,)


def unit_slices(tensor: Tensor, piece: Slice, units: int) -> tuple[tuple[int, ...], ...]:
    """``piece.positions`` against a real tensor, whose dimension must exist."""
    if piece.dim is None:
        return piece.positions(units, tensor.numel())
    if not -tensor.dim() <= piece.dim < tensor.dim():
        raise ValueError(
            f"cuts {piece.where}, but that tensor has {tensor.dim()} dimensions "
            f"{tuple(tensor.shape)}; check Slice.dim"
        )
    return piece.positions(units, tensor.shape[piece.dim])


@lru_cache(maxsize=32)  # the layers of a network are much alike
def _blocks(units: int, block: int) -> tuple[tuple[int, ...], ...]:
    """Consecutive positions for every unit."""
    return tuple(tuple(range(j * block, (j + 1) * block)) for j in range(units))


def _check_index(piece: Slice, units: int, size: int) -> None:
    index = piece.index or ()
    if len(index) != units:
        raise ValueError(
            f"has {units} units, but Slice.index for {piece.where} lists {len(index)}; "
            "give one tuple of positions per unit"
        )
    flat = [position for unit in index for position in unit]
    if len(set(flat)) != len(flat) or any(not 0 <= position < size for position in flat):
        raise ValueError(
            f"has positions in Slice.index for {piece.where} that repeat or lie outside "
            f"0..{size - 1}; each position belongs to at most one unit"
        )
