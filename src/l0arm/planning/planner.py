"""``plan``: from any model to its groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from l0arm.equality.example import Example
from l0arm.equality.trial import Trial
from l0arm.gating import Gated, Group
from l0arm.gating.attention import replace_attention
from l0arm.gating.copying import copied
from l0arm.gating.layout import named_tensors
from l0arm.planning._plan import How, Plan, PlannedGroup, Skipped
from l0arm.planning.capture import Captured, PlanError, capture, first_names
from l0arm.planning.gains import macs_freed, weights_freed
from l0arm.planning.patches import counters, options, tallies
from l0arm.planning.products import even_out
from l0arm.planning.reasons import skipped_layers
from l0arm.planning.refusals import refused_tensors, rewritten, unready
from l0arm.planning.selection import Patterns, matching_modules
from l0arm.planning.settle import counted, is_masked, settle
from l0arm.planning.site import Trace
from l0arm.planning.units import Found, find_groups, module_of
from l0arm.planning.walk import walk


def plan(
    model: nn.Module,
    example_inputs: Sequence[Any] | Any = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    outputs: Sequence[str | int] | str | int | None = None,
) -> Plan:
    """Find which positions of which tensors must be cut together, on a captured graph.

    ``include`` and ``exclude`` name layers by glob (``"layer4.*"``) or type: only units made by
    included layers are gated, and nothing of an excluded layer is cut. ``outputs`` names those
    (by key or number) that must keep their shape; all of them if left out. The plan remembers
    them, and compaction compares only those. The model is not changed. ``print(plan)`` shows what
    was found and what was left alone, with reasons.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> [(group.name, group.units) for group in plan(net, torch.rand(1, 4)).groups]
    [('0', 8)]
    """
    args, kwargs = _cloned(example_inputs, example_kwargs)
    _check(model)
    included = matching_modules(model, include, "include")
    twin = _twin(model)
    replaced = replace_attention(twin)
    refused = _refused(model, twin, exclude)
    captured = capture(twin, args, kwargs)
    kept = _chosen(captured, _names(outputs))
    trace = walk(twin, captured, refused, kept)
    even_out(trace)
    shapes = {name: tuple(tensor.shape) for name, tensor in named_tensors(twin).items()}
    found = find_groups(trace.atoms, shapes)
    asked = [f for f in found if not include or _made_by(f.group, included)]
    trial, places = Trial(twin, args, kwargs, kept), tallies(trace)
    settled = settle(trial, [f.group for f in asked], lambda n: options(twin, places, asked[n]))
    known = [entry.group for entry in settled]
    told = counted(trial, known, lambda n: counters(twin, places, asked[n]))
    ways = [
        (_how(way.group, _inside(entry.group, replaced)), way.reason)
        for entry, way in zip(asked, settled, strict=True)
    ]
    return _plan(model, trace, found, asked, told, ways, replaced)


def _cloned(
    inputs: Sequence[Any] | Any, kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, apart from the user's tensors: a forward may write into them."""
    example = Example.of(inputs, kwargs or {})
    assert example is not None
    return example.args, dict(example.kwargs)


def _plan(
    model: nn.Module,
    trace: Trace,
    found: Sequence[Found],
    asked: Sequence[Found],
    groups: Sequence[Group],
    ways: Sequence[tuple[How, str]],
    replaced: Sequence[str],
) -> Plan:
    tensors = named_tensors(model)
    skipped = skipped_layers(model, trace, found, asked)
    if not groups:
        raise PlanError(_nothing(skipped))
    freed = macs_freed(trace, asked)
    planned = []
    for entry, group, (how, reason), macs in zip(asked, groups, ways, freed, strict=True):
        if how == "masked":
            planned.append(PlannedGroup(group, how, 0, 0, reason=reason))
        else:
            weights = weights_freed(tensors, entry.group)
            exchanged = _inside(entry.group, replaced)
            planned.append(PlannedGroup(group, how, weights, macs, exchanged))
    total = sum(p.numel() for p in model.parameters())
    spent = sum(work.macs for work in trace.work)
    return Plan(tuple(planned), skipped, total, spent, trace.outputs)


def _how(group: Group, replaces: Sequence[str]) -> How:
    if is_masked(group):
        return "masked"
    if replaces:
        return "replaced"
    return "patched" if group.patches else "as is"


def _inside(group: Group, modules: Sequence[str]) -> tuple[str, ...]:
    """Those of the modules that the group cuts something of."""
    cut = [piece.tensor for piece in (*group.makes, *group.reads)]
    return tuple(m for m in modules if any(tensor.startswith(f"{m}.") for tensor in cut))


def _check(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"plan needs an nn.Module, got {type(model).__name__}")
    if any(isinstance(module, Gated) for module in model.modules()):
        raise PlanError("the model is gated already; plan the plain model, or compact it first")
    if next(model.parameters(), None) is None:
        raise PlanError(f"{type(model).__name__} has no parameters: there is nothing to gate")
    if isinstance(model, torch.jit.ScriptModule):
        raise PlanError(
            "a ScriptModule has no graph to plan on: plan the nn.Module it was made from"
        )
    why_not = unready(model)
    if why_not is not None:
        raise PlanError(why_not)
    names = rewritten(model)
    if names:
        raise PlanError(
            f"the weight of '{names[0]}' is rewritten before each call (weight_norm, "
            "spectral_norm or prune of torch.nn.utils); make it plain first, e.g. with "
            "remove_weight_norm"
        )


def _refused(model: nn.Module, twin: nn.Module, exclude: Patterns | None) -> dict[str, str]:
    """Why tensors are not cut, by their first names: the user's reason comes before others."""
    modules = matching_modules(model, exclude, "exclude")
    names = [name for name in named_tensors(model) if module_of(name) in modules]
    excluded = {name: f"'{module_of(name)}' is excluded" for name in names}
    known, first = named_tensors(twin), first_names(twin)
    refused = {**refused_tensors(twin), **excluded}
    return {first[id(known[name])]: why for name, why in refused.items() if name in known}


def _twin(model: nn.Module) -> nn.Module:
    try:
        return copied(model)
    except ValueError as error:
        raise PlanError(str(error)) from None


def _names(outputs: Sequence[str | int] | str | int | None) -> tuple[str, ...]:
    """One output or several, by name."""
    asked = [outputs] if isinstance(outputs, str | int) else outputs or ()
    for name in asked if isinstance(asked, list | tuple | set | frozenset) else [asked]:
        if not isinstance(name, str | int):
            raise PlanError(f"outputs takes keys or numbers of outputs; got {name!r}")
    return tuple(dict.fromkeys(str(name) for name in asked))


def _chosen(captured: Captured, asked: Sequence[str]) -> frozenset[str]:
    """The outputs that keep their shape, by name; empty means all."""
    unknown = [name for name in asked if name not in captured.outputs]
    if unknown:
        there = ", ".join(dict.fromkeys(captured.outputs)) or "none"
        raise PlanError(f"the model has no output {unknown[0]!r}; there are {there}")
    return frozenset(asked)


def _made_by(group: Group, modules: set[str]) -> bool:
    return any(module_of(piece.tensor) in modules for piece in group.makes)


def _nothing(skipped: Sequence[Skipped]) -> str:
    lines = [f"  {entry.layer}: {entry.reason}" for entry in skipped] or ["  no layer has weights"]
    return "\n".join(["nothing of this model can be gated:", *lines])
