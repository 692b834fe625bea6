"""How each group is executed: as is, with patched attributes, in a replaced module, or masked.

A way is accepted only if the values say so: the absence of an exception proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from l0arm.groups import Group
from l0arm.groups.layout import named_tensors
from l0arm.planning.patches import Option
from l0arm.planning.trial import Trial


def settle(
    trial: Trial, groups: Sequence[Group], options: Callable[[int], Sequence[Option]]
) -> list[Group]:
    """The groups with the patches that make dropping right; those without a way are masked.

    ``options`` gives the sets of patches to try for the group at a place in the list.
    """
    first = [replace(g, patches=options(place)[0]) for place, g in enumerate(groups)]
    if trial.agrees(first):
        return first
    ways = _ways(trial, groups, options)
    chosen = [ways[group.name] for group in groups]
    if trial.agrees(chosen):
        return chosen
    settled: list[Group] = []
    for place, group in enumerate(groups):  # one by one, each beside those accepted before it
        ways_here = [chosen[place], *(replace(group, patches=p) for p in options(place))]
        fitting = (way for way in ways_here if trial.agrees([*settled, way]))
        settled.append(next(fitting, masked(trial, group)))
    return settled


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
    trial: Trial, groups: Sequence[Group], options: Callable[[int], Sequence[Option]]
) -> dict[str, Group]:
    """The first way that works for each group alone; layers of one kind are taken to be alike."""
    worked: dict[str, int] = {}
    ways: dict[str, Group] = {}
    for place, group in enumerate(groups):
        tries = [replace(group, patches=patches) for patches in options(place)]
        kind = _kind(group)
        if kind in worked and worked[kind] < len(tries):
            ways[group.name] = tries[worked[kind]]
            continue
        number = next((n for n, way in enumerate(tries) if trial.agrees([way])), None)
        ways[group.name] = masked(trial, group) if number is None else tries[number]
        if number is not None:
            worked[kind] = number
    return ways


def _kind(group: Group) -> str:
    """The same for layers that differ in their number only."""
    parts = [f"{s.tensor} {s.dim} {s.block}" for s in (*group.makes, *group.reads)]
    return re.sub(r"\d+", "#", " ".join([group.name, *parts]))


def masked(trial: Trial, group: Group) -> Group:
    """The group with nothing to drop: closed units are zeroed where they are read."""
    tensors = named_tensors(trial.model)
    weights = tuple(s for s in group.makes if tensors[s.tensor].dim() > 1)
    return replace(group, makes=(), patches=(), counts=weights or group.reads)


def is_masked(group: Group) -> bool:
    """Whether closing units of a group frees nothing."""
    return not group.makes and group.select is None
