"""How each group is executed: as it is, with patched attributes or sizes, or masked.

A way is accepted only if it gives the right values on the example. That nothing raises proves
nothing, and neither do equal values where closing the units moves no output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from l0arm.equality.trial import Trial
from l0arm.gating import Group, Patch, Resize
from l0arm.gating.layout import named_tensors
from l0arm.gating.resizing import noting_scaled
from l0arm.planning._plan import ExecutionKind
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
)
MOST_OPTIONS = 24  # sets of patches to try for one group

Patches = tuple[Patch, ...]
Option = tuple[Patch | Resize, ...]


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
    counters = [entry.counters for entry in candidates]
    first = [
        hidden.get(group.name, _dropped(group, entry.options[0]))
        for group, entry in zip(groups, candidates, strict=True)
    ]
    with noting_scaled():  # some candidates may not be reached
        if not trial.agrees([choice.group for choice in first]):
            options = [entry.options for entry in candidates]
            first = _with_options(trial, groups, options, first, hidden)
        return _with_needed_sizes(trial, _with_counters(trial, first, counters))


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


def _with_options(
    trial: Trial,
    groups: Sequence[Group],
    options: Sequence[Sequence[Option]],
    first: Sequence[Choice],
    hidden: Mapping[str, Choice],
) -> list[Choice]:
    """Find what fails by halving, then try one after the other beside those accepted."""
    alone = _by_kinds(trial, groups, options, first, hidden)
    if trial.agrees([choice.group for choice in alone]):
        return alone
    accepted: list[Choice] = []
    for group, choice, sets in zip(groups, alone, options, strict=True):
        others = [] if choice.reason else sets
        tries = [choice, *(_dropped(group, patches) for patches in others)]
        beside = [earlier.group for earlier in accepted]
        accepted.append(_first_fitting(trial, group, tries, beside))
    return accepted


def _by_kinds(
    trial: Trial,
    groups: Sequence[Group],
    options: Sequence[Sequence[Option]],
    first: Sequence[Choice],
    hidden: Mapping[str, Choice],
) -> list[Choice]:
    """The first option that works for every kind of group, where layers of one kind share it.

    Kinds are tried together and halved where they fail: few of many kinds fail, as a rule.
    """
    places: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        if group.name not in hidden:
            places.setdefault(_kind(group), []).append(place)
    chosen = list(first)
    halves = [list(places.values())]
    while halves:
        kinds = halves.pop()
        if len(kinds) > 1:
            if not trial.agrees([first[place].group for kind in kinds for place in kind]):
                middle = len(kinds) // 2
                halves += [kinds[:middle], kinds[middle:]]
            continue
        for kind in kinds:
            tries = [_dropped(groups[kind[0]], patches) for patches in options[kind[0]]]
            choice = _first_fitting(trial, groups[kind[0]], tries)
            number = None if choice.reason else tries.index(choice)
            for place in kind:
                chosen[place] = choice if place == kind[0] else first[place]
                if number is not None and number < len(options[place]):
                    chosen[place] = _dropped(groups[place], options[place][number])
                elif place != kind[0]:
                    tries = [_dropped(groups[place], patches) for patches in options[place]]
                    chosen[place] = _first_fitting(trial, groups[place], tries)
    return chosen


def _kind(group: Group) -> str:
    """The same text for layers that differ in their number only."""
    parts = [f"{s.tensor} {s.dim} {s.block}" for s in (*group.makes, *group.reads)]
    return re.sub(r"\d+", "#", " ".join([group.name, *parts]))


def _first_fitting(
    trial: Trial, group: Group, tries: Sequence[Choice], beside: Sequence[Group] = ()
) -> Choice:
    """The first choice without a fault, otherwise masked for the fault that came latest.

    A choice that fails at once (sizes that do not fit) says little about the group. The one that
    passed most comparisons shows what stands in the way.
    """
    faults = []
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
    changed = replace(group, patches=patches, resizes=resizes)
    return Choice(changed, "patched" if option else "as is")


def _masked(trial: Trial, group: Group, reason: str) -> Choice:
    """The group with nothing to drop: closed units are zeroed where they are read."""
    tensors = named_tensors(trial.model)
    weights = tuple(s for s in group.makes if tensors[s.tensor].dim() > 1)
    plain = replace(
        group, makes=(), patches=(), resizes=(), picks=(), norms=(), counts=weights or group.reads
    )
    return Choice(plain, "masked", reason)


def _with_counters(
    trial: Trial, chosen: Sequence[Choice], counters: Sequence[Patches]
) -> list[Choice]:
    """Also patch attributes that count the units, where that changes no value."""
    plain = [choice.group for choice in chosen]
    counted = [choice.group for choice in _counted(chosen, counters)]
    if counted != plain and not trial.agrees(counted):
        for place, group in enumerate(counted):
            beside = [*counted[:place], *plain[place + 1 :]]
            counted[place] = group if trial.agrees([*beside, group]) else plain[place]
    return [replace(choice, group=g) for choice, g in zip(chosen, counted, strict=True)]


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
    occurrences = [(count, _occurrences(trace, count)) for count in trace.counts]
    first = {id(module): name for name, module in model.named_modules()}
    sizes: dict[Resize, list[Size]] = {}
    for size in trace.sizes:
        module = first[id(model.get_submodule(size.module))]
        sizes.setdefault(Resize(module, size.place, size.argument), []).append(size)
    candidates = []
    for entry in found:
        matches = list(_matches(model, occurrences, entry))
        counters = [patch for patch, _ in matches if patch.attribute in COUNTERS]
        resizes = tuple(
            r for r, used in sizes.items() if all(_counts_all(trace, s, entry) for s in used)
        )
        options = _options(matches, resizes)
        candidates.append(Candidates(options, tuple(_distinct(counters))))
    return candidates


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


def _occurrences(trace: Trace, count: Count) -> dict[int, int]:
    """How often each unit (by its root) occurs among the positions."""
    roots, times = np.unique(trace.atoms.free_roots(count.atoms), return_counts=True)
    return dict(zip(roots.tolist(), times.tolist(), strict=True))


def _matches(
    model: nn.Module, occurrences: Sequence[tuple[Count, Mapping[int, int]]], found: FoundGroup
) -> Iterator[tuple[Patch, bool]]:
    """Patches by the value of attributes, and whether the operator takes that very attribute."""
    first = {id(module): name for name, module in model.named_modules()}
    for count, times in occurrences:
        numbers = {times.get(root, 0) for root in found.roots}
        per_unit = numbers.pop() if len(numbers) == 1 else 0
        for name in reversed(count.modules) if per_unit else ():
            module = model.get_submodule(name)
            for attribute, value in vars(module).items():
                if type(value) is int and value == count.atoms.size:
                    needed = name == count.modules[-1] and attribute == count.attribute
                    yield Patch(first[id(module)], attribute, per_unit), needed


def _options(matches: Sequence[tuple[Patch, bool]], resizes: tuple[Resize, ...]) -> list[Option]:
    """Sets of patches to try, the likeliest first.

    Before all others comes the set without any patch, except those that an operator itself takes
    (the groups of a convolution): they must change. Sizes in the code are scaled all together.
    """
    patches = _distinct([patch for patch, _ in matches])
    likely = [p for p in patches if any(word in p.attribute for word in LIKELY)]
    sets: list[Option] = [tuple(_distinct([p for p, needed in matches if needed]))]
    by_attribute = [[p for p in patches if p.attribute == a] for a in _names([*likely, *patches])]
    sets += [tuple(likely), *map(tuple, by_attribute), (*sets[0], *resizes)]
    for some in (likely, patches):  # a value may match by chance: leave out each in turn
        sets += [tuple(some), *(tuple(p for p in some if p != out) for out in some)]
    sets += [(patch,) for patch in patches]
    sets += [(a, b) for n, a in enumerate(likely) for b in likely[n + 1 :]]
    return list(dict.fromkeys(sets))[:MOST_OPTIONS]


def _names(patches: Sequence[Patch]) -> list[str]:
    """The names of the attributes, each once."""
    return list(dict.fromkeys(patch.attribute for patch in patches))


def _distinct(patches: Sequence[Patch]) -> list[Patch]:
    """One patch for each attribute."""
    return list({(p.module, p.attribute): p for p in reversed(patches)}.values())[::-1]
