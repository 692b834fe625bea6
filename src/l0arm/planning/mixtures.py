"""Groups of experts: units that compete for tokens.

A closed expert is never chosen: it has no score. So the router is a softmax over those that are
left, or takes the largest of them, and the small network is a plain mixture of fewer experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from l0arm.planning.groups import FoundGroup
from l0arm.planning.rules.base import Trace


def with_routes(trace: Trace, found: Sequence[FoundGroup]) -> list[FoundGroup]:
    """The groups; those of experts with the operations of their routers.

    After a softmax a closed expert has no probability, so that a choice by probability stays.
    """
    result = []
    for entry in found:
        own = set(entry.roots)
        choices = [c for c in trace.chosen if own & set(trace.atoms.roots(c.atoms).tolist())]
        if not choices:
            result.append(entry)
            continue
        count = max(choice.route.chosen for choice in choices)
        scored = [s for s in trace.scored if own & set(trace.atoms.roots(s.atoms).tolist())]
        routes = [replace(s.route, chosen=count) for s in scored or choices]
        group = entry.group
        counts = tuple(dict.fromkeys((*group.makes, *group.reads)))
        group = replace(group, routes=tuple(dict.fromkeys(routes)), floor=count, counts=counts)
        result.append(replace(entry, group=group))
    return result
