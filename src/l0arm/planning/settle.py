"""How each group is executed: as is, with patched attributes, in a replaced module, or masked.

A way is accepted only if the values say so: the absence of an exception proves nothing, nor do
values that are equal because closing the units does not move them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from l0arm.equality.trial import Trial
from l0arm.gating import Group
from l0arm.gating.layout import named_tensors
from l0arm.planning.patches import Option

UNSEEN = (
    "closing its units moves no output visibly on the example, so dropping could not be tried; "
    "plan with inputs of the size and scale of real data"
)


@dataclass(frozen=True)
class Settled:
    """A group as it is executed, and if it is masked, why."""

    group: Group
    reason: str = ""


def settle(
    trial: Trial, groups: Sequence[Group], options: Callable[[int], Sequence[Option]]
) -> list[Settled]:
    """The groups with the patches that make dropping right; those without a way are masked.

    ``options`` gives the sets of patches to try for the group at a place in the list.
    """
    if not groups:
        return []
    hidden = {} if trial.blind else {g.name: masked(trial, g, UNSEEN) for g in trial.unseen(groups)}
    first = [
        hidden.get(g.name, Settled(replace(g, patches=options(place)[0])))
        for place, g in enumerate(groups)
    ]
    if trial.agrees(_groups(first)):
        return first
    ways = _ways(trial, groups, options, hidden)
    chosen = [ways[group.name] for group in groups]
    if trial.agrees(_groups(chosen)):
        return chosen
    settled: list[Settled] = []
    for place, group in enumerate(groups):  # one by one, each beside those accepted before it
        others = [] if chosen[place].reason else options(place)
        tries = [chosen[place], *(Settled(replace(group, patches=p)) for p in others)]
        settled.append(_first_fitting(trial, group, tries, _groups(settled)))
    return settled


def _groups(settled: Sequence[Settled]) -> list[Group]:
    return [entry.group for entry in settled]


def _first_fitting(
    trial: Trial, group: Group, tries: Sequence[Settled], beside: Sequence[Group] = ()
) -> Settled:
    """The first way without a fault; else masked, for the fault of the first."""
    faults = []
    for way in tries:
        fault = trial.fault([*beside, way.group])
        if fault is None:
            return way
        faults.append(fault)
    return masked(trial, group, faults[0])


def counted(
    trial: Trial, groups: Sequence[Group], counters: Callable[[int], Option]
) -> list[Group]:
    """The groups with attributes that count their units kept true, where that changes no value."""
    told = [_told(group, counters(place)) for place, group in enumerate(groups)]
    if told == list(groups) or trial.agrees(told):
        return told
    for place, group in enumerate(told):
        others = [*told[:place], *groups[place + 1 :]]
        told[place] = group if trial.agrees([*others, group]) else groups[place]
    return told


def _told(group: Group, counters: Option) -> Group:
    known = {(patch.module, patch.attribute) for patch in group.patches}
    new = tuple(p for p in counters if (p.module, p.attribute) not in known)
    return group if is_masked(group) else replace(group, patches=(*group.patches, *new))


def _ways(
    trial: Trial,
    groups: Sequence[Group],
    options: Callable[[int], Sequence[Option]],
    hidden: Mapping[str, Settled],
) -> dict[str, Settled]:
    """The first way that works for each group alone; layers of one kind are taken to be alike."""
    worked: dict[str, int] = {}
    ways = dict(hidden)
    for place, group in enumerate(groups):
        if group.name in hidden:
            continue
        tries = [Settled(replace(group, patches=patches)) for patches in options(place)]
        kind = _kind(group)
        if kind in worked and worked[kind] < len(tries):
            ways[group.name] = tries[worked[kind]]
            continue
        ways[group.name] = _first_fitting(trial, group, tries)
        if not ways[group.name].reason:
            worked[kind] = tries.index(ways[group.name])
    return ways


def _kind(group: Group) -> str:
    """The same for layers that differ in their number only."""
    parts = [f"{s.tensor} {s.dim} {s.block}" for s in (*group.makes, *group.reads)]
    return re.sub(r"\d+", "#", " ".join([group.name, *parts]))


def masked(trial: Trial, group: Group, reason: str) -> Settled:
    """The group with nothing to drop: closed units are zeroed where they are read."""
    tensors = named_tensors(trial.model)
    weights = tuple(s for s in group.makes if tensors[s.tensor].dim() > 1)
    plain = replace(group, makes=(), patches=(), counts=weights or group.reads)
    return Settled(plain, reason)


def is_masked(group: Group) -> bool:
    """Whether closing units of a group frees nothing."""
    return not group.makes and group.select is None
