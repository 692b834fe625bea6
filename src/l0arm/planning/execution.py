"""How each group is executed: as it is, with patched attributes or sizes, or masked.

A way is accepted only if it gives the right values on the example. That nothing raises proves
nothing, and neither do equal values where closing the units moves no output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from l0arm.equality.trial import Trial
from l0arm.gating import Dot, Group, Patch, Resize
from l0arm.gating.calls import noting_scaled
from l0arm.gating.layout import named_tensors
from l0arm.planning._plan import ExecutionKind
from l0arm.planning.candidates import (
    COUNTERS,
    Candidates,
    Option,
    Patches,
    is_likely,
    names_of,
)

UNSEEN = (
    "closing its units moves no output visibly on the example, so dropping could not be tried; "
    "plan with inputs of the size and scale of real data"
)


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
        for name in names_of(sorted(doubtful, key=is_likely)):
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
