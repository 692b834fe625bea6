"""``plan``: from any model to its groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from l0arm.equality.example import Example
from l0arm.equality.trial import Trial, Watch
from l0arm.gating import Group
from l0arm.gating.attention import replace_attention
from l0arm.gating.layout import named_tensors
from l0arm.planning._plan import Plan, PlannedGroup, Skipped
from l0arm.planning.candidates import find_candidates
from l0arm.planning.capture import PlanError, capture, check_model, copy_to_plan
from l0arm.planning.depth import choose_branches, find_branches, planned_depth
from l0arm.planning.exclusions import (
    Patterns,
    matching_modules,
    refused_tensors,
    skipped_layers,
)
from l0arm.planning.execution import Choice, choose_execution
from l0arm.planning.groups import (
    FoundGroup,
    even_out,
    find_groups,
    macs_freed,
    weights_freed,
    with_picks,
)
from l0arm.planning.head_dims import choose_head_dims, find_head_dims
from l0arm.planning.layers import find_layers
from l0arm.planning.mixtures import with_routes
from l0arm.planning.rules.base import Trace
from l0arm.planning.streams import prepared_norms, with_norms
from l0arm.planning.walk import walk


def plan(
    model: nn.Module,
    example_inputs: Sequence[Any] | Any = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    outputs: Sequence[str | int] | str | int | None = None,
    stream: bool = False,
    depth: bool = False,
    experts: bool = False,
    head_dims: bool = False,
    time_limit: float | None = None,
    progress: Callable[[str], None] | None = None,
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
        stream: Gate also units that LayerNorm or RMSNorm modules mix, such as the width of a
            transformer's residual stream. Their gates must be 0 or 1, as those of ``l0-arm`` are.
        depth: Gate also whole residual branches f of x + f(x): their modules are not called when
            closed, and gone after compaction. Their gates must be 0 or 1, too.
        experts: Gate also whole experts of mixtures, with their row of the router: a closed one is
            never chosen. Their gates must be 0 or 1, too.
        head_dims: Gate also positions within heads, beside whole heads: position j of all heads of
            queries and keys, of values, or of all three where the code has one width for them.
        time_limit: Seconds after which no further trial starts. What was not tried by then is
            masked, or not gated, with this reason.
        progress: Called with a line of text before every part of the work, such as ``print``.

    Returns:
        The groups with how each is executed, and the layers that are skipped with the reason.

    Raises:
        PlanError: If the model cannot be captured, if nothing of it can be gated, or if a pattern
            or output matches nothing.
        ValueError: If ``time_limit`` is not positive.
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
    watch = Watch.of(progress, time_limit)
    check_model(model)
    watch.report("copying the model")
    named, twin = matching_modules(model, include, "include"), copy_to_plan(model)
    replaced = replace_attention(twin)
    norms = prepared_norms(twin) if stream or head_dims else {}
    refused = refused_tensors(model, twin, exclude)

    # What the graph says: which units there are, and why others are none.
    watch.report("capturing the graph")
    captured = capture(twin, example.args, example.kwargs)
    kept = captured.select_outputs(outputs)
    watch.report(f"walking through {len(captured.nodes)} nodes of the graph")
    trace = walk(twin, captured, refused, kept, norms, stream=stream, experts=experts)
    found = _found(twin, trace)
    included = [entry for entry in found if not include or entry.is_made_by(named)]
    skipped = skipped_layers(model, trace, found, included)
    branches = find_branches(twin, captured, example, refused) if depth else []
    branches = [b for b in branches if not include or any(map(b.branch.holds, named))]
    inner = walk(twin, captured, refused, kept, norms, head_dims=True) if head_dims else None
    if not (included or (inner and inner.within)) and all(branch.reason for branch in branches):
        raise _nothing(skipped)

    # What the values say: how each group can be executed.
    trial = Trial(twin, example.args, example.kwargs, kept, named_tensors(model), watch=watch)
    candidates = find_candidates(twin, trace, included)
    choices = choose_execution(trial, [entry.group for entry in included], candidates)
    included, choices, refusals = _without_refused(included, choices)
    planned = _planned(model, choices, macs_freed(trace, included), replaced)
    skipped = (*skipped, *refusals)
    if inner is not None:
        beside = [entry.group for entry in planned]
        dims, others = find_head_dims(twin, inner, found, beside, named if include else None)
        choices, freed, refusals = choose_head_dims(trial.beside(beside), dims)
        planned = (*planned, *_planned(model, choices, freed, replaced))
        skipped = (*skipped, *others, *refusals)
    if branches:
        group, others = choose_branches(trial, [entry.group for entry in planned], branches)
        planned = planned if group is None else (*planned, planned_depth(model, trace, group))
        skipped = (*skipped, *others)
    totals = _totals(model, trace)
    return Plan(planned, skipped, *totals, trace.outputs, find_layers(model, captured, trace))


def _nothing(skipped: Sequence[Skipped]) -> PlanError:
    lines = [f"  {e.layer}: {e.reason}" for e in skipped] or ["  no layer has weights"]
    return PlanError("\n".join(["nothing of this model can be gated:", *lines]))


def _totals(model: nn.Module, trace: Trace) -> tuple[int, int]:
    """The parameters of the model, and the multiply-adds of one pass of the example."""
    return sum(p.numel() for p in model.parameters()), sum(work.macs for work in trace.work)


def _found(model: nn.Module, trace: Trace) -> list[FoundGroup]:
    """The groups of the graph, with all that belongs to them."""
    even_out(trace)
    found = find_groups(trace.atoms, named_tensors(model), trace.borrowed)
    return with_routes(trace, with_picks(trace, with_norms(trace, found)))


def _without_refused(
    found: Sequence[FoundGroup], choices: Sequence[Choice]
) -> tuple[list[FoundGroup], list[Choice], list[Skipped]]:
    """Leave out what norms mix, and experts, that cannot be cut: to zero it would free nothing."""
    kept, chosen, skipped = [], [], []
    for entry, choice in zip(found, choices, strict=True):
        routes, mixing = entry.group.routes, entry.group.mixing
        if (mixing or routes) and choice.execution == "masked":
            layers = PlannedGroup(entry.group, "masked", 0, 0).layers
            what = f"'{mixing[0]}' mixes the units" if mixing else "its units are experts"
            reason = f"{what}, and {choice.reason}"
            skipped += [Skipped(layer, reason) for layer in layers[:1]]
        else:
            kept.append(entry)
            chosen.append(choice)
    return kept, chosen, skipped


def _planned(
    model: nn.Module, choices: Sequence[Choice], freed: Sequence[int], replaced: Sequence[str]
) -> tuple[PlannedGroup, ...]:
    """The groups as they are executed, with what they free."""
    tensors = named_tensors(model)
    planned = []
    for choice, macs in zip(choices, freed, strict=True):
        if choice.execution == "masked":
            planned.append(PlannedGroup(choice.group, "masked", 0, 0, reason=choice.reason))
        else:
            group = choice.group
            weights = weights_freed(tensors, group)
            inside = _inside(group, replaced)
            inside += tuple(norm.module for norm in group.norms if norm.epsilon is None)
            execution = "replaced" if inside else choice.execution
            planned.append(PlannedGroup(choice.group, execution, weights, macs, inside))
    return tuple(planned)


def _inside(group: Group, modules: Sequence[str]) -> tuple[str, ...]:
    """Those of the modules of which the group cuts something."""
    cut = [piece.tensor for piece in (*group.makes, *group.reads)]
    return tuple(m for m in modules if any(tensor.startswith(f"{m}.") for tensor in cut))
