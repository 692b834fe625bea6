"""Groups resolved against a model: which gate acts on which position of which tensor.

The gates of all groups form one flat vector of V entries. Each position of a dimension is described
by the flat number of its gate. The number V stands for a gate that is always open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from l0arm.gating.group import Branch, Group, Norm, Patch, Slice, unit_slices
from l0arm.gating.norms import rms_weight
from l0arm.gating.validation import check_modules, check_names, check_select, named


@dataclass(eq=False)
class Reach:
    """One group on one dimension: the flat gate of every position."""

    group: int
    gate_of: Tensor  # int64, one entry per position; V where no gate of the group acts
    reads: bool  # the group reads here, or else it makes its units here
    folds: bool  # z is multiplied in: where units are read; where norms act on them, everywhere
    selects: bool  # closed positions still arrive in the input, and are removed there
    plain: bool  # position j is unit j: the gates of the group in order
    drops: bool  # closed positions are dropped. False: nothing makes or selects them; zeroed.
    branch: bool = False  # a gate closes the whole tensor, by not calling its module
    rows: bool = False  # it reads rows that make queries: zeros there close a position of heads
    _numbers: npt.NDArray[np.int64] | None = None

    @property
    def numbers(self) -> npt.NDArray[np.int64]:
        """``gate_of`` on the host."""
        if self._numbers is None:
            self._numbers = self.gate_of.cpu().numpy()
        return self._numbers

    def gates_on(self, device: torch.device) -> Tensor:
        """``gate_of`` on a device. It is moved once and stays there."""
        if self.gate_of.device != device:
            self.gate_of = self.gate_of.to(device)
        return self.gate_of


@dataclass(eq=False)
class Axis:
    """One dimension that groups cut. A position is kept if all of these groups keep it."""

    size: int
    reaches: tuple[Reach, ...]

    def __post_init__(self) -> None:
        # What cuts positions of a module that is called.
        self.within = tuple(reach for reach in self.reaches if not reach.branch)
        # The common case: one group, unit by unit.
        plain = len(self.within) == 1 and self.within[0].plain
        self.single = self.within[0] if plain else None


@dataclass(eq=False)
class TensorCut:
    """How one tensor is cut: by an axis per dimension, and by element-wise gates."""

    name: str
    axes: dict[int, Axis] = field(default_factory=dict)
    elementwise: list[int] = field(default_factory=list)  # groups that gate single elements
    rms: Norm | None = None  # it is the weight of this RMSNorm: the fewer are left, the larger


@dataclass(eq=False)
class Layout:
    """Everything the engine needs to know about where the gates sit."""

    groups: tuple[Group, ...]
    offsets: tuple[int, ...]
    gates: int  # V
    group_of: Tensor  # flat gate -> group
    sizes: Tensor  # |g|, the number of weights each gate answers for (Eq. 17)
    tensors: dict[str, TensorCut]
    selections: dict[str, tuple[int, Axis]]  # module -> (dim of its input, axis it is gathered by)
    drops: tuple[bool, ...]  # whether closed units of each group are dropped, not only zeroed
    twice: tuple[int, ...] = ()  # groups whose gates must be 0 or 1: they act twice, or on modules
    branches: tuple[tuple[int, Branch], ...] = ()  # residual branches, each with its flat gate

    def __post_init__(self) -> None:
        # Attributes that count units, by module and name: their patches, each with its group.
        self.patches: dict[str, dict[str, list[tuple[Patch, int]]]] = {}
        for number, group in enumerate(self.groups):
            for patch in group.patches:
                own = self.patches.setdefault(patch.module, {})
                own.setdefault(patch.attribute, []).append((patch, number))
        self.units = [group.units for group in self.groups]
        # Without any branch a network still runs, but a layer needs a unit, a router some experts.
        self.least = [0 if group.branches else max(1, group.chosen) for group in self.groups]
        ends = zip(self.offsets, self.units, strict=True)
        self._spans = [slice(start, start + units) for start, units in ends]

    def span(self, group: int) -> slice:
        """The part of the flat vector that belongs to a group."""
        return self._spans[group]


def resolve(model: nn.Module, groups: Sequence[Group]) -> Layout:
    """Check every group against the model and lay its gates out."""
    check_names(groups)
    offsets, total = [], 0
    for group in groups:
        offsets.append(total)
        total += group.units
    check_modules(model, groups)
    tensors = named_tensors(model)
    groups = [_canonical(group, tensors) for group in groups]
    reaches = _collect(tensors, groups, offsets, total)
    cuts = _share_axes(tensors, reaches)
    for number, group in enumerate(groups):
        for piece in group.reads:
            if piece.dim is None:
                cuts.setdefault(piece.tensor, TensorCut(piece.tensor)).elementwise.append(number)
    owner = torch.tensor([n for n, group in enumerate(groups) for _ in range(group.units)])
    selections = _selections(tensors, groups, cuts)
    sizes = torch.cat([_sizes(tensors, group) for group in groups])
    _mark_norms(model, tensors, groups, cuts)
    twice = tuple(
        number
        for number, group in enumerate(groups)
        if group.closes_makers or group.branches or group.routes or _overlap(group)
    )
    drops = tuple(group.drops for group in groups)
    branches = tuple(
        (offset + unit, branch)
        for offset, group in zip(offsets, groups, strict=True)
        for unit, branch in enumerate(group.branches)
    )
    return Layout(
        tuple(groups), tuple(offsets), total, owner, sizes, cuts, selections, drops, twice, branches
    )


def _selections(
    tensors: dict[str, Tensor], groups: Sequence[Group], cuts: dict[str, TensorCut]
) -> dict[str, tuple[int, Axis]]:
    """Modules whose input is gathered: along which dimension, by which axis of their weight."""
    found: dict[str, tuple[int, Axis]] = {}
    for group in groups:
        if group.select is not None:
            dim = check_select(group, taken=found)
            read = group.reads[0]
            axis = cuts[read.tensor].axes[_positive(tensors[read.tensor], read)]
            found[group.select.tensor] = (dim, axis)
    return found


def _mark_norms(
    model: nn.Module,
    tensors: dict[str, Tensor],
    groups: Sequence[Group],
    cuts: dict[str, TensorCut],
) -> None:
    """Mark the weights of RMSNorms, which grow as units go."""
    for group in groups:
        for norm in group.norms:
            if norm.epsilon is not None:
                weight = rms_weight(model.get_submodule(norm.module), norm)
                name = next(name for name, tensor in tensors.items() if tensor is weight)
                if name not in cuts or weight.dim() != 1:
                    raise ValueError(
                        f"group '{group.name}' has the RMSNorm '{norm.module}' among its norms, "
                        "whose weight must be a vector that the group cuts; add it to makes"
                    )
                cuts[name].rms = norm


def _overlap(group: Group) -> bool:
    """Whether a group reads and makes the same positions of a tensor."""

    def places(piece: Slice) -> set[int] | None:  # None: all
        return None if piece.index is None else {p for unit in piece.index for p in unit}

    return any(
        (one.tensor, one.dim) == (other.tensor, other.dim)
        and (places(one) is None or places(other) is None or places(one) & places(other))  # type: ignore[operator]
        for one in group.reads
        for other in group.makes
    )


def _sizes(tensors: dict[str, Tensor], group: Group) -> Tensor:
    """|g| of every unit of a group, Eq. 17."""
    sizes = torch.zeros(group.units)
    for piece in group.counts:
        tensor = tensors[piece.tensor]
        each = 1 if piece.dim is None else tensor.numel() // tensor.shape[piece.dim]
        units = units_of(tensors, group, piece)
        lengths = [piece.block] if piece.index is None else [len(unit) for unit in units]
        sizes += each * torch.tensor(lengths)
    return sizes


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under all their names. A tied weight has several."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def units_of(tensors: dict[str, Tensor], group: Group, piece: Slice) -> tuple[tuple[int, ...], ...]:
    """The positions of a group's units in a named tensor. Errors name the group."""
    try:
        return unit_slices(tensors[piece.tensor], piece, group.units)
    except ValueError as error:
        raise ValueError(f"group '{group.name}' {error}") from None


def _canonical(group: Group, tensors: dict[str, Tensor]) -> Group:
    """The group with every tensor under the first of its names, and every slice once.

    A group that names no counts counts the weights it makes, or else those that read it.
    """
    first: dict[int, str] = {}
    for name, tensor in tensors.items():
        first.setdefault(id(tensor), name)

    def rename(pieces: tuple[Slice, ...]) -> tuple[Slice, ...]:
        return tuple(dict.fromkeys(one_name(s, named(tensors, group, s)) for s in pieces))

    def one_name(piece: Slice, tensor: Tensor) -> Slice:
        from_end = piece.dim is not None and -tensor.dim() <= piece.dim < 0
        dim = _positive(tensor, piece) if from_end else piece.dim
        return replace(piece, tensor=first[id(tensor)], dim=dim)

    reads, makes = rename(group.reads), rename(group.makes)
    made = tuple(s for s in makes if tensors[s.tensor].dim() >= 2)
    return replace(group, reads=reads, makes=makes, counts=rename(group.counts) or made or reads)


def _collect(
    tensors: dict[str, Tensor], groups: Sequence[Group], offsets: list[int], total: int
) -> dict[tuple[str, int], list[Reach]]:
    """Every (tensor, dimension) with the groups that cut it."""
    found: dict[tuple[str, int], list[Reach]] = {}
    for number, group in enumerate(groups):
        for piece in group.counts:
            units_of(tensors, group, piece)
        counted = set(group.counts) if group.dots else set()
        for piece, reads in [(s, True) for s in group.reads] + [(s, False) for s in group.makes]:
            units = units_of(tensors, group, piece)
            if piece.dim is None:
                continue
            tensor = tensors[piece.tensor]
            dim = _positive(tensor, piece)
            if piece.index is None:
                gate_of = offsets[number] + torch.arange(tensor.shape[dim]) // piece.block
            else:
                gate_of = torch.full((tensor.shape[dim],), total)
                gates = [offsets[number] + unit for unit, at in enumerate(units) for _ in at]
                gate_of[[position for at in units for position in at]] = torch.tensor(gates)
            plain = piece.index is None and piece.block == 1
            selects = reads and group.select is not None
            folds = reads or group.closes_makers
            branch = bool(group.branches)
            reads = reads and not branch
            found.setdefault((piece.tensor, dim), []).append(
                Reach(
                    number,
                    gate_of,
                    reads,
                    folds,
                    selects,
                    plain,
                    group.drops,
                    branch,
                    rows=bool(group.dots) and (piece in counted or tensor.dim() == 1),
                )
            )
    return found


def _share_axes(
    tensors: dict[str, Tensor], reaches: dict[tuple[str, int], list[Reach]]
) -> dict[str, TensorCut]:
    """One Axis object for all dimensions that are cut alike, so that a draw resolves it once."""
    axes: dict[tuple[object, ...], Axis] = {}
    cuts: dict[str, TensorCut] = {}
    for (name, dim), found in reaches.items():
        size = tensors[name].shape[dim]
        key = (size, *((r.group, r.reads, r.selects, r.gate_of.numpy().tobytes()) for r in found))
        axis = axes.setdefault(key, Axis(size, tuple(found)))
        cuts.setdefault(name, TensorCut(name)).axes[dim] = axis
    for cut in cuts.values():  # rows before columns: fewer and longer pieces to copy
        cut.axes = dict(sorted(cut.axes.items()))
    return cuts


def _positive(tensor: Tensor, piece: Slice) -> int:
    assert piece.dim is not None
    return piece.dim % tensor.dim()
