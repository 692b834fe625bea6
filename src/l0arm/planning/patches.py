"""Integer attributes that may count units: found by their value where a size was written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from l0arm.gating import Patch
from l0arm.planning.site import Count, Trace
from l0arm.planning.units import Found

LIKELY = ("head", "group", "channel", "split", "nf", "inner", "features")
COUNTERS = (  # what these say is true after compaction, also where no forward needs it
    *("num_heads", "n_heads", "n_head", "nhead", "heads", "num_attention_heads"),
    *("num_key_value_heads", "num_kv_heads", "n_kv_heads", "all_head_size"),
)
MOST = 24  # ways to try for one group

Option = tuple[Patch, ...]


@dataclass(frozen=True, eq=False)
class Tally:
    """How often each unit occurs in an array whose length some attribute may hold."""

    count: Count
    times: dict[int, int]  # root -> positions


def tallies(trace: Trace) -> list[Tally]:
    """All places where the number of positions may have been written down."""
    found = []
    for count in trace.counts:
        units, times = np.unique(trace.atoms.free(count.atoms), return_counts=True)
        found.append(Tally(count, dict(zip(units.tolist(), times.tolist(), strict=True))))
    return found


def options(model: nn.Module, places: Sequence[Tally], found: Found) -> list[Option]:
    """Sets of patches to try, the likeliest first; leaving all as it is comes before them.

    Not so where an operator itself takes the number (groups of a convolution): it must change.
    """
    candidates = list(_candidates(model, places, found))
    patches = _distinct([patch for patch, _ in candidates])
    likely = [p for p in patches if any(word in p.attribute for word in LIKELY)]
    sets: list[Option] = [tuple(_distinct([p for p, needed in candidates if needed]))]
    for some in (likely, patches):  # a value may be met by chance: each in turn is left out
        sets += [tuple(some), *(tuple(p for p in some if p != out) for out in some)]
    sets += [(patch,) for patch in patches]
    sets += [(a, b) for n, a in enumerate(likely) for b in likely[n + 1 :]]
    return list(dict.fromkeys(sets))[:MOST]


def counters(model: nn.Module, places: Sequence[Tally], found: Found) -> Option:
    """Attributes that count the units by their very name, whether the forward asks them or not."""
    known = [p for p, _ in _candidates(model, places, found) if p.attribute in COUNTERS]
    return tuple(_distinct(known))


def _distinct(patches: list[Patch]) -> list[Patch]:
    """One patch for each attribute."""
    return list({(p.module, p.attribute): p for p in reversed(patches)}.values())[::-1]


def _candidates(
    model: nn.Module, places: Sequence[Tally], found: Found
) -> Iterator[tuple[Patch, bool]]:
    """Patches by the value of attributes, and whether the operator takes that very attribute."""
    first = {id(module): name for name, module in model.named_modules()}
    for tally in places:
        numbers = {tally.times.get(root, 0) for root in found.roots}
        per_unit = numbers.pop() if len(numbers) == 1 else 0
        for name in reversed(tally.count.modules) if per_unit else ():
            module = model.get_submodule(name)
            for attribute, value in vars(module).items():
                if type(value) is int and value == tally.count.atoms.size:
                    innermost = name == tally.count.modules[-1]
                    needed = innermost and attribute == tally.count.attribute
                    yield Patch(first[id(module)], attribute, per_unit), needed
