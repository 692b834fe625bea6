"""How each group is executed: as it is, with patched attributes or sizes, or masked.

A way is accepted only if it gives the right values on the example. That nothing raises proves
nothing, and neither do equal values where closing the units moves no output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from torch import nn

from l0arm.equality.trial import Trial
from l0arm.gating import Dot, Group, Patch, Resize
from l0arm.gating.layout import named_tensors
from l0arm.gating.resizing import noting_scaled
from l0arm.planning._plan import ExecutionKind
from l0arm.planning.atoms import Array
from l0arm.planning.groups import FoundGroup
from l0arm.planning.rules.base import Count, Size, Trace

UNSEEN = (
    "closing its units moves no output visibly on the example, so dropping could not be tried; "
    "plan with inputs of the size and scale of real data"
)
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


@dataclass(frozen=True)
class Choice:
    """A group with its patches, how it is executed, and if it is masked, why."""

    group: Group
    execution: ExecutionKind
    reason: str = ""


def choose_execution(
    trial: Trial, groups: Sequence[Group], candidates: Sequence[Candidates]
) -> list[Choice]:
    """The groups with the patches that make dropping right. Groups without such are masked."""
    if not groups:
        return []
    hidden = {}
    if not trial.blind:
        hidden = {g.name: _masked(trial, g, UNSEEN) for g in trial.unseen(groups)}
    first = [
        hidden.get(group.name, _dropped(group, entry.options[0]))
        for group, entry in zip(groups, candidates, strict=True)
    ]
    with noting_scaled():  # some candidates may not be reached
        found = _right(trial, groups, candidates, first, hidden)
        return _with_needed_sizes(trial, _without_chance_patches(trial, found))


def _without_chance_patches(trial: Trial, chosen: Sequence[Choice]) -> list[Choice]:
    """Without attributes that have the value of a size by chance: values are right without them.

    A window of attention may be as wide as all heads together. In a set of patches that works, its
    own patch shows on long inputs only. Attributes that count units by their name stay.
    """
    several = [choice.group.patches for choice in chosen if len(choice.group.patches) > 1]
    doubtful = [p for patches in several for p in patches if p.attribute not in COUNTERS]
    for quick in (True, False):  # at first with fewer comparisons; all of them are the judge
        current = list(chosen)
        for name in _names(sorted(doubtful, key=is_likely)):
            kinds: dict[str, list[int]] = {}
            for place, choice in enumerate(current):
                if _without(choice, name) != choice:
                    kinds.setdefault(_kind(choice.group), []).append(place)
            for places in kinds.values():  # what one layer needs, all of its kind need
                fewer = list(current)
                for place in places:
                    fewer[place] = _without(current[place], name)
                if trial.agrees([choice.group for choice in fewer], quick=quick):
                    current = fewer
        if current == list(chosen) or trial.agrees([choice.group for choice in current]):
            return current
    return list(chosen)


def _without(choice: Choice, attribute: str) -> Choice:
    """The choice without the patches of an attribute, unless it has no others."""
    kept = tuple(p for p in choice.group.patches if p.attribute != attribute)
    return replace(choice, group=replace(choice.group, patches=kept)) if kept else choice


def _with_needed_sizes(trial: Trial, chosen: Sequence[Choice]) -> list[Choice]:
    """Without sizes that need no scaling: they come from what was cut, or are never reached."""
    if not any(choice.group.resizes for choice in chosen):
        return list(chosen)
    with noting_scaled() as needed:
        trial.agrees([choice.group for choice in chosen])
    found = []
    for choice in chosen:
        resizes = tuple(r for r in choice.group.resizes if (r.place, r.argument) in needed)
        found.append(replace(choice, group=replace(choice.group, resizes=resizes)))
    return found


def _right(
    trial: Trial,
    groups: Sequence[Group],
    candidates: Sequence[Candidates],
    first: Sequence[Choice],
    hidden: Mapping[str, Choice],
) -> list[Choice]:
    """Choices that are right together: the first ones if possible, others where they fail."""
    counters = [entry.counters for entry in candidates]
    plain = [choice.group for choice in first]
    looks_right = trial.agrees(plain, quick=True)
    if looks_right:
        counted = _counted(first, counters)
        if trial.agrees([choice.group for choice in counted]):
            return counted
        if counted != first and trial.agrees(plain):
            return _exchanged(trial, first, counted)
    options = [entry.options for entry in candidates]
    ways = (False,) if looks_right else (True, False)
    for quick in ways:  # at first with fewer comparisons; all of them are the judge
        alone = _by_kinds(trial, groups, options, first, hidden, quick=quick)
        counted = _counted(alone, counters)
        if trial.agrees([choice.group for choice in counted]):
            return counted
        if counted != alone and trial.agrees([choice.group for choice in alone]):
            return _exchanged(trial, alone, counted)
    accepted = _together(trial, groups, options, alone)
    return _exchanged(trial, accepted, _counted(accepted, counters))


def _exchanged(trial: Trial, chosen: Sequence[Choice], better: Sequence[Choice]) -> list[Choice]:
    """Exchange choices for better ones wherever that changes no value, by halving.

    At first with fewer comparisons. All of them judge what comes out.
    """
    quick = _halved(trial, chosen, better, quick=True)
    if quick == list(chosen) or trial.agrees([choice.group for choice in quick]):
        return quick
    return _halved(trial, chosen, better, quick=False)


def _halved(
    trial: Trial, chosen: Sequence[Choice], better: Sequence[Choice], *, quick: bool
) -> list[Choice]:
    """``_exchanged`` with one kind of comparison."""
    current = list(chosen)
    waiting = [[n for n, choice in enumerate(better) if choice != chosen[n]]]
    while waiting:
        places = waiting.pop()
        if not places:
            continue
        tried = [better[n] if n in places else choice for n, choice in enumerate(current)]
        if trial.agrees([choice.group for choice in tried], quick=quick):
            current = tried
        elif len(places) > 1:
            middle = len(places) // 2
            waiting += [places[middle:], places[:middle]]
    return current


def _together(
    trial: Trial,
    groups: Sequence[Group],
    options: Sequence[Sequence[Option]],
    alone: Sequence[Choice],
) -> list[Choice]:
    """Of choices that are right alone, those that are right together; others for the rest."""
    masked = [choice if choice.reason else _masked(trial, choice.group, "-") for choice in alone]
    accepted = _exchanged(trial, masked, alone)
    for place in [n for n, choice in enumerate(alone) if accepted[n].reason != choice.reason]:
        tries = [alone[place], *(_dropped(groups[place], patches) for patches in options[place])]
        beside = [choice.group for n, choice in enumerate(accepted) if n != place]
        accepted[place] = _first_fitting(trial, groups[place], tries, beside)
    return accepted


def _by_kinds(
    trial: Trial,
    groups: Sequence[Group],
    options: Sequence[Sequence[Option]],
    first: Sequence[Choice],
    hidden: Mapping[str, Choice],
    *,
    quick: bool,
) -> list[Choice]:
    """The first option that works for every kind of group, where layers of one kind share it.

    Not all of them are right together. Kinds are tried by halves, and halved again where they fail:
    few of many kinds fail, as a rule.
    """
    places: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        if group.name not in hidden:
            places.setdefault(_kind(group), []).append(place)
    chosen = list(first)
    halves = [list(places.values())]
    while halves:
        kinds = halves.pop()
        together = [first[place].group for kind in kinds for place in kind]
        if len(kinds) < len(places) and trial.agrees(together, quick=quick):
            continue
        if len(kinds) > 1:
            middle = len(kinds) // 2
            halves += [kinds[:middle], kinds[middle:]]
            continue
        for kind in kinds:
            tries = [_dropped(groups[kind[0]], patches) for patches in options[kind[0]]]
            choice = _first_fitting(trial, groups[kind[0]], tries, quick=quick)
            option = None if choice.reason else options[kind[0]][tries.index(choice)]
            for place in kind:
                chosen[place] = choice if place == kind[0] else first[place]
                alike = None if option is None else _alike(option, options[place])
                if alike is not None:
                    chosen[place] = _dropped(groups[place], alike)
                elif place != kind[0]:
                    tries = [_dropped(groups[place], patches) for patches in options[place]]
                    chosen[place] = _first_fitting(trial, groups[place], tries, quick=quick)
    return chosen


def _alike(option: Option, options: Sequence[Option]) -> Option | None:
    """The option of another layer of the same kind, out of the parts that it has itself.

    Options are not in the same order: in layer 16, the number of the layer may be that of heads.
    """
    parts = {_part_kind(part): part for known in reversed(options) for part in known}
    found = tuple(parts[_part_kind(p)] for p in option if _part_kind(p) in parts)
    return found if len(found) == len(option) else None


def _part_kind(part: Patch | Resize | Dot) -> tuple[str, ...]:
    """The same for layers that differ in their number only."""
    module = re.sub(r"\d+", "#", part.module)
    if isinstance(part, Patch):
        return (module, part.attribute)
    return (module, part.place, str(part.argument) if isinstance(part, Resize) else "dot")


def _kind(group: Group) -> str:
    """The same text for layers that differ in their number only."""
    parts = [f"{s.tensor} {s.dim} {s.block}" for s in (*group.makes, *group.reads)]
    return re.sub(r"\d+", "#", " ".join([group.name, *parts]))


def _first_fitting(
    trial: Trial,
    group: Group,
    tries: Sequence[Choice],
    beside: Sequence[Group] = (),
    *,
    quick: bool = False,
) -> Choice:
    """The first choice without a fault, otherwise masked for the fault that came latest.

    A choice that fails at once (sizes that do not fit) says little about the group. The one that
    passed most comparisons shows what stands in the way.
    """
    faults = []
    if quick:
        for choice in tries:
            if trial.agrees([*beside, choice.group], quick=True):
                return choice
    for choice in tries:
        fault = trial.fault([*beside, choice.group])
        if fault is None:
            return choice
        faults.append(fault)
    latest = max(faults, key=lambda fault: fault.passed)  # the first of equals
    return _masked(trial, group, latest.reason)


def _dropped(group: Group, option: Option) -> Choice:
    """The group with closed units dropped."""
    patches = tuple(part for part in option if isinstance(part, Patch))
    resizes = tuple(part for part in option if isinstance(part, Resize))
    counted = {part.place for part in option if isinstance(part, Dot)}
    dots = tuple(replace(dot, counted=dot.place in counted) for dot in group.dots)
    changed = replace(group, patches=patches, resizes=resizes, dots=dots)
    return Choice(changed, "patched" if option else "as is")


def _masked(trial: Trial, group: Group, reason: str) -> Choice:
    """The group with nothing to drop: closed units are zeroed where they are read."""
    tensors = named_tensors(trial.model)
    weights = tuple(s for s in group.makes if tensors[s.tensor].dim() > 1)
    plain = replace(group, makes=(), patches=(), resizes=(), picks=(), norms=(), routes=())
    plain = replace(plain, widens=(), dots=())
    plain = replace(plain, counts=weights or group.reads)
    return Choice(plain, "masked", reason)


def _counted(chosen: Sequence[Choice], counters: Sequence[Patches]) -> list[Choice]:
    """The choices with all attributes patched that count the units by their name."""
    counted = []
    for choice, patches in zip(chosen, counters, strict=True):
        known = {(patch.module, patch.attribute) for patch in choice.group.patches}
        new = tuple(p for p in patches if (p.module, p.attribute) not in known)
        group = replace(choice.group, patches=(*choice.group.patches, *new))
        counted.append(replace(choice, group=group) if choice.group.drops else choice)
    return counted


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
    by_attribute = [[p for p in patches if p.attribute == a] for a in _names([*likely, *patches])]
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


def _names(patches: Sequence[Patch]) -> list[str]:
    """The names of the attributes, each once."""
    return list(dict.fromkeys(patch.attribute for patch in patches))


def _distinct(patches: Sequence[Patch]) -> list[Patch]:
    """One patch for each attribute."""
    return list({(p.module, p.attribute): p for p in reversed(patches)}.values())[::-1]
