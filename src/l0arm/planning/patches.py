"""Integer attributes that may count units: found by their value where a size was written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from torch import nn

from l0arm.groups import Patch
from l0arm.planning.site import Count, Trace
from l0arm.planning.units import Found

LIKELY = ("head", "group", "channel", "split", "nf", "inner", "features")
MOST = 24  # ways to try for one group

Option = tuple[Patch, ...]


def options(model: nn.Module, trace: Trace, found: Found) -> list[Option]:
    """Sets of patches to try, the likeliest first; leaving all as it is comes before them."""
    patches = _distinct(list(_candidates(model, trace, found)))
    likely = [p for p in patches if any(word in p.attribute for word in LIKELY)]
    sets: list[Option] = [()]
    for some in (likely, patches):  # a value may be met by chance: each in turn is left out
        sets += [tuple(some), *(tuple(p for p in some if p != out) for out in some)]
    sets += [(patch,) for patch in patches]
    sets += [(a, b) for n, a in enumerate(likely) for b in likely[n + 1 :]]
    return list(dict.fromkeys(sets))[:MOST]


def _distinct(patches: list[Patch]) -> list[Patch]:
    """One patch for each attribute."""
    return list({(p.module, p.attribute): p for p in reversed(patches)}.values())[::-1]


def _candidates(model: nn.Module, trace: Trace, found: Found) -> Iterator[Patch]:
    roots = set(found.roots)
    for count in trace.counts:
        per_unit = _per_unit(trace, count, roots)
        if per_unit:
            for name in reversed(count.modules):
                module = model.get_submodule(name)
                for attribute, value in vars(module).items():
                    if type(value) is int and value == count.atoms.size:
                        yield Patch(name, attribute, per_unit)


def _per_unit(trace: Trace, count: Count, roots: set[int]) -> int:
    """How many positions of the array each unit of the group has; 0 if they do not have alike."""
    units, times = np.unique(trace.atoms.free(count.atoms), return_counts=True)
    seen = Counter(dict(zip(units.tolist(), times.tolist(), strict=True)))
    numbers = {seen[root] for root in roots}
    return numbers.pop() if len(numbers) == 1 else 0
