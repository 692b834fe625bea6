"""Depth: residual branches that can be units, found in the graph.

A sum has a residual branch if one of its sides is computed from the other: x + f(x). What feeds
that side and nothing else is f. The modules that compute nothing else are those that a closed
branch does without.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from l0arm.equality.example import Example, in_eval, restored_state
from l0arm.equality.trial import Trial
from l0arm.gating import Branch, Group, Slice
from l0arm.gating.branches import is_cache
from l0arm.gating.layout import named_tensors
from l0arm.planning._plan import PlannedGroup, Skipped
from l0arm.planning.capture import Captured
from l0arm.planning.rules.base import Trace
from l0arm.planning.walk import used_nodes

NAME = "depth"
SUMS = ("aten.add.Tensor", "aten.add_.Tensor")
SAME = ("aten.to", "aten.dropout", "aten.contiguous", "aten.alias", "aten.detach")  # in eval mode
CACHE = "the first attention with a cache tells the others how many positions there are so far"
SHARED = "it shares the weight '{tensor}' with modules outside of it"
UNSEEN = "closing it moves no output visibly on the example"


@dataclass(frozen=True)
class Found:
    """A residual branch, or why what looks like one is none."""

    name: str  # of its largest module
    branch: Branch
    reason: str = ""


def find_branches(
    model: nn.Module, captured: Captured, example: Example, refused: Mapping[str, str]
) -> list[Found]:
    """All residual branches of a captured model, in its order. Branches inside of others win."""
    graph = _Graph(captured.nodes)
    sides = sorted(graph.branches(), key=len)
    watched = _Watched(model, example)
    taken: set[fx.Node] = set()
    found: list[tuple[int, Found]] = []
    for nodes in sides:
        if nodes & taken:  # it has another branch inside
            continue
        modules = graph.modules_within(nodes)
        if any(next(model.get_submodule(m).parameters(), None) is not None for m in modules):
            taken |= nodes
            first = min(graph.place[node] for node in nodes)
            found.append((first, _judged(model, modules, watched, refused)))
    return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]


def _judged(
    model: nn.Module, modules: list[str], watched: _Watched, refused: Mapping[str, str]
) -> Found:
    """The branch of these modules, with the reason if it cannot be a unit."""
    sizes = {m: sum(p.numel() for p in model.get_submodule(m).parameters()) for m in modules}
    name = max(modules, key=lambda m: sizes[m])
    known = [module for module in modules if module in watched.returns]
    branch = Branch(tuple(known), tuple(watched.returns[module] for module in known))
    inside = {id(t) for m in known for t in model.get_submodule(m).parameters()}
    for tensor, parameter in named_tensors(model).items():
        if branch.holds(tensor) and tensor in refused:
            return Found(name, branch, refused[tensor])
        if id(parameter) in inside and not branch.holds(tensor):
            return Found(name, branch, SHARED.format(tensor=tensor))
    if name not in known:
        return Found(name, branch, f"'{name}' returns other things than tensors")
    if any(branch.holds(module) for module in watched.first_cached):
        return Found(name, branch, CACHE)
    return Found(name, branch)


class _Graph:
    """The graph without operations that return their input."""

    def __init__(self, nodes: Sequence[fx.Node]) -> None:
        used = used_nodes(nodes)
        self.nodes = [node for node in nodes if node in used and not _is_same(node)]
        self.place = {node: place for place, node in enumerate(nodes)}
        self.users: dict[fx.Node, set[fx.Node]] = {node: set() for node in nodes}
        self.sources: dict[fx.Node, list[fx.Node]] = {}
        for node in self.nodes:
            self.sources[node] = [_source(used) for used in node.all_input_nodes]
            for source in self.sources[node]:
                self.users[source].add(node)
        self._module_nodes: dict[str, set[fx.Node]] = {}
        for node in self.nodes:
            for module in _modules(node) if node.op == "call_function" else ():
                self._module_nodes.setdefault(module, set()).add(node)

    def branches(self) -> Iterator[set[fx.Node]]:
        """The nodes of every residual branch."""
        for node in self.nodes:
            if str(node.target) not in SUMS or not all(isinstance(a, fx.Node) for a in node.args):
                continue
            left, right = (_source(side) for side in node.args[:2])  # type: ignore[arg-type]
            if not _shape(left) or not _shape(left) == _shape(right) == _shape(node):
                continue
            for stream, side in ((left, right), (right, left)):
                yield from self._terms(node, side, stream)

    def _terms(self, user: fx.Node, side: fx.Node, stream: fx.Node) -> Iterator[set[fx.Node]]:
        """The branch that ends in a side of a sum; of a sum of branches, each of them."""
        nodes = self._only_for(user, side)
        if not nodes or not self._depends(nodes, stream):
            return
        if str(side.target) in SUMS and all(isinstance(a, fx.Node) for a in side.args):
            terms = [_source(term) for term in side.args[:2]]  # type: ignore[arg-type]
            if all(_shape(term) == _shape(side) for term in terms):
                parts = [list(self._terms(side, term, stream)) for term in terms]
                if all(parts):
                    yield from (part for some in parts for part in some)
                    return
        yield nodes

    def _only_for(self, user: fx.Node, side: fx.Node) -> set[fx.Node]:
        """What the user needs for this side, and nothing else needs."""
        if self.users[side] != {user} or side.op != "call_function":
            return set()
        found, waiting = {side}, list(self.sources[side])
        while waiting:
            node = waiting.pop()
            if node not in found and node.op == "call_function" and self.users[node] <= found:
                found.add(node)
                waiting += self.sources[node]
        return found

    def _depends(self, nodes: set[fx.Node], stream: fx.Node) -> bool:
        """Whether any of the nodes is computed from the stream."""
        seen, waiting = set(nodes), list(nodes)
        while waiting:
            for source in self.sources.get(waiting.pop(), ()):
                if source is stream:
                    return True
                if source not in seen and self.place[source] > self.place[stream]:
                    seen.add(source)
                    waiting.append(source)
        return False

    def modules_within(self, nodes: set[fx.Node]) -> list[str]:
        """The outermost modules that compute some of the nodes and nothing that others use."""
        names = {name for node in nodes for name in _modules(node) if name}
        own = {n for n in names if self._of(n) <= nodes}
        inner = [n for n in own if not any(n.startswith(f"{outer}.") for outer in own)]
        return sorted(inner, key=lambda n: min(self.place[m] for m in self._of(n)))

    def _of(self, module: str) -> set[fx.Node]:
        return self._module_nodes[module]


def _is_same(node: fx.Node) -> bool:
    """Whether an operation returns its input, as ``to`` of the same type does."""
    if node.op != "call_function" or not str(node.target).startswith(SAME):
        return False
    before, after = (n.meta.get("val") for n in (node.args[0], node))  # type: ignore[union-attr]
    return isinstance(before, Tensor) and isinstance(after, Tensor) and before.dtype == after.dtype


def _source(node: fx.Node) -> fx.Node:
    while _is_same(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _shape(node: fx.Node) -> tuple[int, ...]:
    value = node.meta.get("val")
    floats = isinstance(value, Tensor) and value.is_floating_point()
    return tuple(value.shape) if isinstance(value, Tensor) and floats else ()


def _modules(node: fx.Node) -> list[str]:
    stack = node.meta.get("nn_module_stack") or {}
    return [str(entry[0]).partition("@")[0] for entry in stack.values()]


class _Watched:
    """What every module returns in one call of the model, and which get a cache."""

    def __init__(self, model: nn.Module, example: Example) -> None:
        self.returns: dict[str, tuple[str, ...]] = {}
        self._cached: list[tuple[str, int]] = []
        self._types = getattr(getattr(model, "config", None), "layer_types", None) or []
        with torch.random.fork_rng(), in_eval(model), torch.no_grad(), restored_state(model):
            handles = [
                module.register_forward_hook(self._hook(name), with_kwargs=True)
                for name, module in model.named_modules()
            ]
            try:
                self._run(model, example)
            finally:
                for handle in handles:
                    handle.remove()

    def _run(self, model: nn.Module, example: Example) -> None:
        """Call the model with caches, if it has any."""
        modules = (getattr(module, "config", None) for module in model.modules())
        caches = any(hasattr(config, "use_cache") for config in modules)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for added in ({"use_cache": True}, {}) if caches else ({},):
                own = example.map(torch.clone)  # a forward may write into it
                try:
                    model(*own.args, **{**own.kwargs, **added})
                    return
                except TypeError:  # its forward does not take the argument
                    continue

    def _hook(self, name: str) -> Any:
        def watch(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            names = inspect.signature(module.forward).parameters
            named = {**dict(zip(names, args, strict=False)), **kwargs}
            parts = [_part(value, named) for value in output] if type(output) is tuple else []
            if isinstance(output, Tensor) or (parts and None not in parts):
                self.returns[name] = tuple(str(part) for part in parts)
            index = vars(module).get("layer_idx")
            if type(index) is int and any(map(is_cache, named.values())):
                self._cached.append((name, index))

        return watch

    @property
    def first_cached(self) -> list[str]:
        """Of every stack of layers and type of attention, the first module with a cache."""
        places = [self._place(name, index) for name, index in self._cached]
        lowest: dict[tuple[str, str], int] = {}
        for place, (_, index) in zip(places, self._cached, strict=True):
            lowest[place] = min(lowest.get(place, index), index)
        return [
            name
            for place, (name, index) in zip(places, self._cached, strict=True)
            if index == lowest[place]
        ]

    def _place(self, name: str, index: int) -> tuple[str, str]:
        """The stack of layers, and the type of attention."""
        kind = self._types[index] if index < len(self._types) else ""
        return re.split(r"\.\d+\.", name)[0], str(kind)


def _part(value: Any, named: Mapping[str, Any]) -> str | None:
    """A part of what a module returns, as in ``Branch.returns``; None if it is anything else."""
    if value is None:
        return "none"
    for name, argument in named.items():
        if argument is value:
            return name
    return "zeros" if isinstance(value, Tensor) else None


def choose_branches(
    trial: Trial, others: Sequence[Group], found: Sequence[Found]
) -> tuple[Group | None, list[Skipped]]:
    """The branches that can be closed, tested on values as one group beside the others."""
    reasons = {entry.name: entry.reason for entry in found if entry.reason}
    left = [entry for entry in found if not entry.reason]
    unseen = _unseen(trial, left)
    reasons |= dict.fromkeys(unseen, UNSEEN)
    left = [entry for entry in left if entry.name not in unseen]
    if left and _fault(trial, others, left) is not None:
        left, faults = _by_kind(trial, others, left)
        reasons |= faults
        fault = _fault(trial, others, left) if left else None
        if fault is not None:
            reasons |= {entry.name: fault for entry in left}
            left = []
    skipped = [
        Skipped(entry.name, f"a residual branch that is not a unit of depth: {reasons[entry.name]}")
        for entry in found
        if entry.name in reasons
    ]
    return (group_of(trial.model, left) if left else None), skipped


def group_of(model: nn.Module, found: Sequence[Found]) -> Group:
    """The branches as the units of one group."""
    reads = []
    for unit, entry in enumerate(found):
        for module in entry.branch.modules:
            for key, parameter in model.get_submodule(module).named_parameters():
                index: list[tuple[int, ...]] = [()] * len(found)
                index[unit] = tuple(range(len(parameter)))
                reads.append((Slice(f"{module}.{key}", 0, index=tuple(index)), parameter.dim()))
    counts = tuple(piece for piece, dims in reads if dims > 1)
    branches = tuple(entry.branch for entry in found)
    every = tuple(piece for piece, _ in reads)
    return Group(NAME, len(found), reads=every, counts=counts, branches=branches)


def _unseen(trial: Trial, found: Sequence[Found]) -> set[str]:
    """Branches whose closing shows in no output: for them a comparison proves nothing."""
    if trial.blind or not found:
        return {entry.name for entry in found}
    group = group_of(trial.model, found)
    seen = trial.seen([entry.branch.modules[-1] for entry in found])
    hidden = set()
    for unit, entry in enumerate(found):
        z = torch.ones(len(found))
        z[unit] = 0.0
        if not seen[unit] and not trial.shows([group], z):
            hidden.add(entry.name)
    return hidden


def _fault(trial: Trial, others: Sequence[Group], found: Sequence[Found]) -> str | None:
    """What goes wrong when any of the branches, or all of them, are closed."""
    group = group_of(trial.model, found)
    fault = trial.fault([*others, group]) or trial.fault_under([group], torch.zeros(len(found)))
    return None if fault is None else fault.reason


def _by_kind(
    trial: Trial, others: Sequence[Group], found: Sequence[Found]
) -> tuple[list[Found], dict[str, str]]:
    """The kinds of branches that can be closed, with fewer modules where need be.

    If not all modules of a branch can be left out, the last one alone often can.
    """
    kinds: dict[str, list[Found]] = {}
    for entry in found:
        kinds.setdefault(re.sub(r"\d+", "#", " ".join(entry.branch.modules)), []).append(entry)
    left, faults = list[Found](), dict[str, str]()
    for members in kinds.values():
        reason = ""
        for options in (members, [_last(trial.model, entry) for entry in members]):
            fault = _fault(trial, others, options)
            if fault is None:
                left += options
                break
            reason = reason or fault
        else:
            faults |= {entry.name: reason for entry in members}
    order = {entry.name: place for place, entry in enumerate(found)}
    return sorted(left, key=lambda entry: order[entry.name]), faults


def _last(model: nn.Module, found: Found) -> Found:
    """The branch of its last module that has weights."""
    parts = zip(found.branch.modules, found.branch.returns, strict=True)
    *_, (module, returns) = (
        part for part in parts if next(model.get_submodule(part[0]).parameters(), None) is not None
    )
    return replace(found, branch=Branch((module,), (returns,)))


def planned_depth(model: nn.Module, trace: Trace, group: Group) -> PlannedGroup:
    """The group of the plan, with what its branches free."""
    tensors = named_tensors(model)
    weights = sum(tensors[piece.tensor].numel() for piece in group.reads)
    inside = [name for branch in group.branches for name in branch.modules]
    macs = sum(work.macs for work in trace.work if not work.modules.isdisjoint(inside))
    return PlannedGroup(group, "skipped", weights, macs)
