"""``plan``: from any model to its groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from l0arm.equality.example import Example
from l0arm.equality.trial import Trial
from l0arm.gating import Group
from l0arm.gating.attention import replace_attention
from l0arm.gating.layout import named_tensors
from l0arm.planning._plan import Plan, PlannedGroup
from l0arm.planning.capture import PlanError, capture, check_model, copy_to_plan
from l0arm.planning.exclusions import (
    Patterns,
    matching_modules,
    refused_tensors,
    skipped_layers,
)
from l0arm.planning.execution import Choice, choose_execution, find_candidates
from l0arm.planning.groups import (
    FoundGroup,
    even_out,
    find_groups,
    macs_freed,
    weights_freed,
)
from l0arm.planning.rules.base import Trace
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
    """Find which positions of which tensors of a model must be cut together.

    The model is captured as a graph, and every way to execute a group is tried on a copy. The model
    itself is not changed. ``print(plan)`` shows what was found and what was skipped, with reasons.

    Args:
        model: Any plain model that ``torch.export`` can capture.
        example_inputs: Positional arguments of one call: a tuple or list, or a single value.
        example_kwargs: Keyword arguments of the call.
        include: Gate only units made by these layers, given by glob on their names
            (``"layer4.*"``) or by type; all if left out.
        exclude: Cut nothing of these layers, given in the same way.
        outputs: Keys or numbers of the outputs that must keep their shape; all if left out. The
            plan stores them, and compaction compares only those.

    Returns:
        The groups with how each is executed, and the layers that are skipped with the reason.

    Raises:
        PlanError: If the model cannot be captured, if nothing of it can be gated, or if a pattern
            or output matches nothing.
        TypeError: If ``model`` is not an ``nn.Module``.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Linear(6, 2))
        >>> [(group.name, group.units) for group in plan(net, torch.rand(1, 4)).groups]
        [('0', 8), ('2', 6)]
        >>> [group.name for group in plan(net, torch.rand(1, 4), exclude="0").groups]
        ['2']
    """
    example = Example.of(example_inputs, example_kwargs or {})
    assert example is not None
    check_model(model)
    layers = matching_modules(model, include, "include")
    twin = copy_to_plan(model)
    replaced = replace_attention(twin)
    refused = refused_tensors(model, twin, exclude)

    # What the graph says: which units there are, and why others are none.
    captured = capture(twin, example.args, example.kwargs)
    kept = captured.select_outputs(outputs)
    trace = walk(twin, captured, refused, kept)
    even_out(trace)
    found = find_groups(trace.atoms, named_tensors(twin))
    included = [entry for entry in found if not include or entry.is_made_by(layers)]
    skipped = skipped_layers(model, trace, found, included)
    if not included:
        lines = [f"  {entry.layer}: {entry.reason}" for entry in skipped]
        lines = lines or ["  no layer has weights"]
        raise PlanError("\n".join(["nothing of this model can be gated:", *lines]))

    # What the values say: how each group can be executed.
    trial = Trial(twin, example.args, example.kwargs, kept)
    candidates = find_candidates(twin, trace, included)
    choices = choose_execution(trial, [entry.group for entry in included], candidates)
    planned = _planned(model, trace, included, choices, replaced)
    weights = sum(p.numel() for p in model.parameters())
    macs = sum(work.macs for work in trace.work)
    return Plan(planned, skipped, weights, macs, trace.outputs)


def _planned(
    model: nn.Module,
    trace: Trace,
    found: Sequence[FoundGroup],
    choices: Sequence[Choice],
    replaced: Sequence[str],
) -> tuple[PlannedGroup, ...]:
    """The groups as they are executed, with what they free."""
    tensors = named_tensors(model)
    planned = []
    for entry, choice, macs in zip(found, choices, macs_freed(trace, found), strict=True):
        if choice.execution == "masked":
            planned.append(PlannedGroup(choice.group, "masked", 0, 0, reason=choice.reason))
        else:
            weights = weights_freed(tensors, entry.group)
            inside = _inside(entry.group, replaced)
            execution = "replaced" if inside else choice.execution
            planned.append(PlannedGroup(choice.group, execution, weights, macs, inside))
    return tuple(planned)


def _inside(group: Group, modules: Sequence[str]) -> tuple[str, ...]:
    """Those of the modules of which the group cuts something."""
    cut = [piece.tensor for piece in (*group.makes, *group.reads)]
    return tuple(m for m in modules if any(tensor.startswith(f"{m}.") for tensor in cut))
