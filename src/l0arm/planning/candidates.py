"""Which attributes and sizes may count the units of a group: the patches to try for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from torch import nn

from l0arm.gating import Dot, Patch, Resize
from l0arm.planning.atoms import Array
from l0arm.planning.groups import FoundGroup
from l0arm.planning.rules.base import Count, Size, Trace

LIKELY = ("head", "group", "channel", "split", "nf", "inner", "features")
COUNTERS = (  # these are kept true after compaction, even if no forward uses them
    *("num_heads", "n_heads", "n_head", "nhead", "heads", "num_attention_heads"),
    *("num_key_value_heads", "num_kv_heads", "n_kv_heads", "all_head_size"),
    *("num_experts", "num_local_experts", "n_routed_experts"),
)
MOST_OPTIONS = 24  # sets of patches to try for one group

Patches = tuple[Patch, ...]
Option = tuple[Patch | Resize | Dot, ...]


@dataclass(frozen=True)
class Candidates:
    """The patches to try for a group."""

    options: Sequence[Option] = ((),)  # alternatives, the likeliest first
    counters: Patches = ()  # attributes that count the units by their name


def find_candidates(
    model: nn.Module, trace: Trace, found: Sequence[FoundGroup]
) -> list[Candidates]:
    """Patches of integer attributes that have the value of a size which units change."""
    owner = (
        np.full(1 + max(max(entry.roots) for entry in found), -1)
        if found
        else np.zeros(0, np.int64)
    )
    for number, entry in enumerate(found):
        owner[list(entry.roots)] = number
    counted: list[list[tuple[Count, int]]] = [[] for _ in found]
    for count in trace.counts:
        for number, per_unit in _per_unit(trace, count, owner, found):
            counted[number].append((count, per_unit))
    first = {id(module): name for name, module in model.named_modules()}
    sizes: dict[Resize, list[Size]] = {}
    for size in trace.sizes:
        module = first[id(model.get_submodule(size.module))]
        sizes.setdefault(Resize(module, size.place, size.argument), []).append(size)
    candidates = []
    every = [list(_matches(model, counts)) for counts in counted]
    apart = _patched_apart(every)
    for entry, some in zip(found, every, strict=True):
        matches = [m for m in some if (m.patch.module, m.patch.attribute) not in apart]
        counters = [m.patch for m in matches if m.patch.attribute in COUNTERS]
        resizes = tuple(
            replace(resize, per_unit=_positions_per_unit(used, entry))
            for resize, used in sizes.items()
            if all(_counts_all(trace, size, entry) for size in used)
        )
        options = _options(matches, resizes)
        candidates.append(Candidates(options, tuple(_distinct(counters))))
    return candidates


def _patched_apart(every: Sequence[Sequence[_Match]]) -> set[tuple[str, str]]:
    """Attributes that count units of several groups, but not in one sum: one number for all layers.

    It stays that of the dense network.
    """
    seen: dict[tuple[str, str], list[set[int]]] = {}
    for matches in every:
        own: dict[tuple[str, str], set[int]] = {}
        for patch, _, count in matches:
            own.setdefault((patch.module, patch.attribute), set()).add(id(count))
        for key, ids in own.items():
            seen.setdefault(key, []).append(ids)
    return {key for key, sets in seen.items() if not set.intersection(*sets)}


def _counts_all(trace: Trace, size: Size, found: FoundGroup) -> bool:
    """Whether a size counts nothing but the units of a group, each as often as the others."""
    if size.factor is None:
        return False
    roots = trace.atoms.free_roots(size.factor.atoms)
    rows = np.moveaxis(roots, size.factor.along(size.dim), 0).reshape(
        roots.shape[size.factor.along(size.dim)], -1
    )
    units, times = np.unique(rows[:, 0], return_counts=True)
    is_even = bool((rows == rows[:, :1]).all()) and len(set(times.tolist())) == 1
    return is_even and set(units.tolist()) == set(found.roots)


def _positions_per_unit(sizes: Sequence[Size], found: FoundGroup) -> int:
    """How many positions of a unit a call counts; 0 if calls of the same place differ."""
    counts = {s.factor.atoms.shape[s.factor.along(s.dim)] for s in sizes if s.factor is not None}
    return counts.pop() // len(found.roots) if len(counts) == 1 else 0


def _per_unit(
    trace: Trace, count: Count, owner: Array, found: Sequence[FoundGroup]
) -> Iterator[tuple[int, int]]:
    """The groups (by number) whose units all occur equally often among the positions: how often."""
    roots, times = np.unique(trace.atoms.free_roots(count.atoms), return_counts=True)
    within = roots < len(owner)
    groups, times = owner[roots[within]], times[within]
    for number in np.unique(groups[groups >= 0]).tolist():
        own = times[groups == number]
        if len(own) == len(found[number].roots) and bool((own == own[0]).all()):
            yield number, int(own[0])


class _Match(NamedTuple):
    """An attribute with the value of a size that units change."""

    patch: Patch
    needed: bool  # the operator takes that very attribute
    source: Count


def _matches(model: nn.Module, counted: Sequence[tuple[Count, int]]) -> Iterator[_Match]:
    """Patches by the value of attributes."""
    first = {id(module): name for name, module in model.named_modules()}
    for count, per_unit in counted:
        for name in reversed(count.modules):
            module = model.get_submodule(name)
            for attribute, value in vars(module).items():
                if type(value) is int and value == count.atoms.size:
                    needed = name == count.modules[-1] and attribute == count.attribute
                    yield _Match(Patch(first[id(module)], attribute, per_unit), needed, count)


def _options(matches: Sequence[_Match], resizes: tuple[Resize, ...]) -> list[Option]:
    """Sets of patches to try, the likeliest first.

    Before all others comes the set without any patch, except those that an operator itself takes
    (the groups of a convolution): they must change. Sizes in the code are scaled all together, and
    only where attributes do not do: a wrapped forward costs more, and its attributes count wrong.
    """
    patches = _distinct([match.patch for match in matches])
    likely = [p for p in patches if is_likely(p)]
    sets: list[Option] = [tuple(_distinct([m.patch for m in matches if m.needed]))]
    by_attribute = [[p for p in patches if p.attribute == a] for a in names_of([*likely, *patches])]
    sets += [tuple(likely), *map(tuple, by_attribute)]
    for some in (likely, patches):  # a value may match by chance: leave out each in turn
        sets += [tuple(some), *(tuple(p for p in some if p != out) for out in some)]
    sets = [*dict.fromkeys(sets)][: MOST_OPTIONS - 1]
    sets += [(*sets[0], *resizes)]
    sets += [(patch,) for patch in patches]
    sets += [(a, b) for n, a in enumerate(likely) for b in likely[n + 1 :]]
    return list(dict.fromkeys(sets))[:MOST_OPTIONS]


def is_likely(patch: Patch) -> bool:
    """Whether the name of an attribute sounds like a number of units."""
    return any(word in patch.attribute for word in LIKELY)


def names_of(patches: Sequence[Patch]) -> list[str]:
    """The names of the attributes, each once."""
    return list(dict.fromkeys(patch.attribute for patch in patches))


def _distinct(patches: Sequence[Patch]) -> list[Patch]:
    """One patch for each attribute."""
    return list({(p.module, p.attribute): p for p in reversed(patches)}.values())[::-1]
