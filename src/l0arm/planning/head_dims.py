"""Head dimensions: positions within the heads of attention as units, next to whole heads.

A unit is one position of every head, so that all heads keep one width. A position of the values
meets only its columns of the output projection. One of queries and keys is a term of their product.
With zeros for the queries' rows it adds nothing. A second walk through the graph finds them: a view
that splits heads keeps positions and not heads apart. The product goes on being scaled by the full
width.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor, nn

from l0arm.equality.trial import Trial
from l0arm.gating import Dot, Group, Patch, Resize, Slice
from l0arm.gating.group import unit_slices
from l0arm.gating.layout import named_tensors
from l0arm.planning._plan import Skipped
from l0arm.planning.atoms import Array
from l0arm.planning.candidates import Candidates, Option, find_candidates, is_likely
from l0arm.planning.execution import Choice, choose_execution
from l0arm.planning.groups import (
    FoundGroup,
    even_out,
    find_groups,
    macs_freed,
    module_of,
    with_picks,
)
from l0arm.planning.rules.base import Trace, Within
from l0arm.planning.streams import with_norms

INSIDE = " < "  # in the place of a call that a function makes for the forward
SUFFIX = "#dims"  # of the names of these groups
TIED = "queries, keys and values share one attribute for their width"
WHY = "its head dimensions stay: {reason}"
Places = dict[tuple[str, int], Array]  # the unit at every position of a dimension; 0: none


@dataclass(frozen=True, eq=False)
class HeadDims:
    """A group of positions within heads, with what closing all of them frees.

    Where one attribute is the width of queries, keys and values, the group has all three, and
    ``parts`` are the groups to try if they cannot be cut as one.
    """

    found: FoundGroup
    candidates: Candidates
    macs: int
    parts: tuple[HeadDims, ...] = ()

    def is_made_by(self, modules: Collection[str]) -> bool:
        """Whether one of these modules makes the positions."""
        return any(module_of(piece.tensor) in modules for piece in self.found.group.counts)


def find_head_dims(
    model: nn.Module,
    trace: Trace,
    others: Sequence[FoundGroup],
    beside: Sequence[Group],
    included: Collection[str] | None = None,
) -> tuple[list[HeadDims], list[Skipped]]:
    """All groups of positions within heads, and layers whose positions stay, with the reason.

    Args:
        model: The scratch copy of the model.
        trace: Of a walk with head dimensions.
        others: All other groups. Units that are among theirs already are none.
        beside: Those of them that are planned, with the attributes that count their units.
        included: The modules whose positions are wanted. None: of all.

    Returns:
        The groups, and what stays.
    """
    taken = _places(named_tensors(model), [entry.group for entry in others])
    counted = {(p.module, p.attribute): group.units for group in beside for p in group.patches}
    separate = _gathered(model, trace, taken, counted)
    skipped = list(_pinned(model, trace))
    found = []
    if _tie(model, trace, counted):
        even_out(trace)
        for entry in _gathered(model, trace, taken, counted):
            own = set(entry.found.roots)
            parts = [p for p in separate if own & set(_roots(trace, p.found))]
            found.append(entry if len(parts) < 2 else replace(entry, parts=tuple(parts)))
    found = found or separate
    return [f for f in found if included is None or f.is_made_by(included)], skipped


def choose_head_dims(
    trial: Trial, found: Sequence[HeadDims]
) -> tuple[list[Choice], list[int], list[Skipped]]:
    """The groups that can be cut, with how, their multiply-adds, and why others cannot.

    A group of queries, keys and values that cannot be cut as one is tried as its parts.
    """
    chosen = _chosen(trial, found)
    good = [(entry, choice) for entry, choice in chosen if choice.execution != "masked"]
    bad = [(entry, choice) for entry, choice in chosen if choice.execution == "masked"]
    parts = [part for entry, _ in bad for part in entry.parts]
    if parts:
        again = _chosen(trial.beside([choice.group for _, choice in good]), parts)
        good += [(entry, choice) for entry, choice in again if choice.execution != "masked"]
        bad = [(entry, choice) for entry, choice in bad if not entry.parts]
        bad += [(entry, choice) for entry, choice in again if choice.execution == "masked"]
    skipped = [
        Skipped(module_of(piece.tensor), WHY.format(reason=choice.reason))
        for entry, choice in bad
        for piece in (*entry.found.group.counts, *entry.found.group.reads)[:1]
    ]
    return [choice for _, choice in good], [entry.macs for entry, _ in good], skipped


def _chosen(trial: Trial, found: Sequence[HeadDims]) -> list[tuple[HeadDims, Choice]]:
    groups, candidates = [e.found.group for e in found], [e.candidates for e in found]
    return list(zip(found, choose_execution(trial, groups, candidates), strict=True))


def _gathered(
    model: nn.Module, trace: Trace, taken: Places, counted: Mapping[tuple[str, str], int]
) -> list[HeadDims]:
    """The groups as the graph has them now."""
    tensors = named_tensors(model)
    found = find_groups(trace.atoms, tensors, trace.borrowed)
    inside = {root for one in trace.within for root in trace.atoms.free_roots(one.atoms).tolist()}
    new = [e for e in found if inside & set(e.roots) and _is_new(tensors, e.group, taken)]
    new = with_picks(trace, with_norms(trace, new))
    names: set[str] = set()
    groups = [_described(trace, tensors, entry, names) for entry in new]
    candidates = find_candidates(model, trace, groups)
    return [
        HeadDims(entry, _with_scales(trace, entry, _fitting(model, entry, some, counted)), macs)
        for entry, some, macs in zip(groups, candidates, macs_freed(trace, groups), strict=True)
    ]


def _places(tensors: dict[str, Tensor], groups: Sequence[Group]) -> Places:
    """The unit of these groups, from 1, at every position that they cut."""
    taken: Places = {}
    first = 1
    for group in groups:
        for piece in (*group.makes, *group.reads):
            assert piece.dim is not None
            tensor = tensors[piece.tensor]
            units = unit_slices(tensor, piece, group.units)
            own = taken.setdefault(
                (piece.tensor, piece.dim), np.zeros(tensor.shape[piece.dim], int)
            )
            for number, positions in enumerate(units):
                own[list(positions)] = first + number
        first += group.units
    return taken


def _is_new(tensors: dict[str, Tensor], group: Group, taken: Places) -> bool:
    """Whether other groups have coarser units at these positions (whole heads), or none."""
    for piece in (*group.reads, *group.makes):
        assert piece.dim is not None
        here = taken.get((piece.tensor, piece.dim))
        if here is None:
            return True
        owners: dict[int, int] = {}
        for number, unit in enumerate(unit_slices(tensors[piece.tensor], piece, group.units)):
            for other in here[list(unit)].tolist():
                if not other or owners.setdefault(other, number) != number:
                    return True
    return False


def _described(
    trace: Trace, tensors: dict[str, Tensor], entry: FoundGroup, names: set[str]
) -> FoundGroup:
    """The group with its name, its products, and all rows as those that it answers for."""
    group, order = entry.group, {(o.tensor, o.dim): n for n, o in enumerate(trace.atoms.origins)}
    rows = {
        (origin.tensor, origin.dim)
        for origin in trace.atoms.origins
        if trace.atoms.is_label(origin.first)
    }
    pieces = sorted(
        {*group.makes, *group.reads},
        key=lambda p: order[p.tensor, p.dim if p.dim is not None else 0],
    )
    counts = [p for p in pieces if (p.tensor, p.dim) in rows and tensors[p.tensor].dim() > 1]
    base = module_of((counts or pieces)[0].tensor) or pieces[0].tensor
    name, number = f"{base}{SUFFIX}", 2
    while name in names:
        name, number = f"{base}{SUFFIX}{number}", number + 1
    names.add(name)
    held = [p for p in group.reads if isinstance(tensors[p.tensor], nn.Parameter)]
    dots = tuple(one.dot for one in _products(trace, entry) if one.dot is not None)
    group = replace(
        group,
        name=name,
        reads=tuple(sorted(held, key=lambda p: (p.tensor, p.dim) not in rows)),  # rows come first
        makes=tuple(dict.fromkeys([*group.makes, *_without(group.reads, held)])),
        counts=tuple(counts),
        dots=tuple(dict.fromkeys(dots)),
    )
    return replace(entry, group=group)


def _without(pieces: Sequence[Slice], others: Sequence[Slice]) -> list[Slice]:
    return [piece for piece in pieces if piece not in others]


def _products(trace: Trace, entry: FoundGroup, *, whole: bool = False) -> list[Within]:
    """The products of queries and keys over units of a group; ``whole``: over nothing else."""
    own, found = set(entry.roots), []
    for one in [one for one in trace.within if one.dot is not None]:
        units = set(trace.atoms.free_roots(one.atoms).tolist())
        if units == own or (units & own and not whole):
            found.append(one)
    return found


def _fitting(
    model: nn.Module, entry: FoundGroup, some: Candidates, counted: Mapping[tuple[str, str], int]
) -> Candidates:
    """The candidates without attributes that count heads and have the same value by chance.

    An attribute that counts both has their product.
    """

    def fits(part: object) -> bool:
        if not isinstance(part, Patch):
            return True
        value = getattr(model.get_submodule(part.module), part.attribute)
        others = counted.get((part.module, part.attribute), 1)
        return others == 1 or bool(value % (others * entry.group.units) == 0)

    options = [tuple(part for part in option if fits(part)) for option in some.options]
    return Candidates(list(dict.fromkeys(options)))


def _with_scales(trace: Trace, entry: FoundGroup, some: Candidates) -> Candidates:
    """The candidates, with products that count the width, and those that do not.

    Fused attention without a given scale counts. Of others the graph does not say. Before all come
    the attributes with the width as their value, and likely ones that count it for all heads.
    """
    products = _products(trace, entry, whole=True)
    always, every = (
        tuple(replace(dot, counted=True) for dot in _dots(products, only=only))
        for only in (True, False)
    )
    patches = [part for option in some.options for part in option if isinstance(part, Patch)]
    whole: Option = tuple(
        patch for patch in dict.fromkeys(patches) if patch.per_unit == 1 or is_likely(patch)
    )
    sizes = [part for option in some.options for part in option if isinstance(part, Resize)]
    # Functions that the forward calls take sizes from their arguments, as a rule.
    direct = [size for size in dict.fromkeys(sizes) if INSIDE not in size.place]
    own: Option = tuple(replace(size, per_unit=0) for size in direct)  # heads may be a factor
    ways: list[Option] = [whole, *some.options, own, (*whole, *own)]
    ways = list(dict.fromkeys(ways[0 if whole else 1 :]))
    options = [(*way, *scales) for way in ways for scales in dict.fromkeys([always, every])]
    return Candidates(options)


def _dots(products: Sequence[Within], *, only: bool) -> Iterator[Dot]:
    for one in products:
        if one.dot is not None and one.dot.place and (one.default or not only):
            yield one.dot


def _tie(model: nn.Module, trace: Trace, counted: Mapping[tuple[str, str], int]) -> bool:
    """Unite positions of queries, keys and values where one attribute is the width of all three."""
    tied = False
    for dot in [one for one in trace.within if one.dot is not None]:
        for value in [one for one in trace.within if one.dot is None]:
            alike = value.modules == dot.modules and value.atoms.size == dot.atoms.size
            if not alike or _same(trace, dot.atoms, value.atoms):
                continue
            shared = _widths(model, trace, dot) & _widths(model, trace, value)
            if shared - counted.keys():  # what counts heads may have the same value by chance
                trace.atoms.unite(dot.atoms, value.atoms, TIED)
                tied = True
    return tied


def _widths(model: nn.Module, trace: Trace, one: Within) -> set[tuple[str, str]]:
    """Integer attributes that may be the width of these positions, by module and name."""
    size, module = one.atoms.size, one.modules[-1]
    counts = [c.atoms for c in trace.counts if c.modules == one.modules and c.atoms.size == size]
    if not any(_same(trace, atoms, one.atoms) for atoms in counts):
        return set()
    own = vars(model.get_submodule(module)).items()
    return {(module, key) for key, value in own if type(value) is int and value == size}


def _same(trace: Trace, one: Array, other: Array) -> bool:
    """Whether two arrays hold the same units, none of them pinned."""
    roots = trace.atoms.free_roots(one.ravel())
    return bool(roots.all() and (roots == trace.atoms.free_roots(other.ravel())).all())


def _roots(trace: Trace, found: FoundGroup) -> list[int]:
    roots: list[int] = trace.atoms.roots(np.array(found.roots)).tolist()
    return roots


def _pinned(model: nn.Module, trace: Trace) -> Iterator[Skipped]:
    """The layers that make positions within heads which are never cut."""
    tensors = named_tensors(model)
    atoms = trace.atoms
    heads = {root for one in trace.heads for root in atoms.roots(one.ravel()).tolist()}
    seen: set[str] = set()
    for one in trace.within:
        roots = atoms.roots(one.atoms.ravel())
        reason = atoms.reason(int(roots[0]))
        if reason is None or not heads & set(roots.tolist()):
            continue
        for origin in atoms.origins:
            layer = module_of(origin.tensor)
            plain = tensors[origin.tensor].dim() < 2 or not atoms.is_label(origin.first)
            if plain or layer in seen:
                continue
            here = atoms.roots(np.arange(origin.first, origin.first + origin.size))
            if np.isin(here, roots).any():
                seen.add(layer)
                yield Skipped(layer, WHY.format(reason=reason))
