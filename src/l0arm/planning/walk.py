"""The walk through a captured graph: every operator's rule is asked how units pass."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from l0arm.gating.layout import named_tensors
from l0arm.planning.capture import Captured
from l0arm.planning.rules.base import NotCovered, Site, Trace, find, spaces_in
from l0arm.planning.space import Factor, Space

INPUT = "an input of the model keeps its shape"
OUTPUT = "an output of the model keeps its shape"


def walk(
    model: nn.Module, captured: Captured, refused: Mapping[str, str], outputs: Collection[str]
) -> Trace:
    """All that the graph says about units; tensors in ``refused`` are pinned with the reason."""
    walker = _Walker(model, captured, Trace(refused, tuple(sorted(outputs))))
    alive = _alive(captured.nodes)
    for node in captured.nodes:
        if node.op == "output":
            walker.finish(node, captured.outputs, outputs)
        elif node in alive:
            walker.visit(node)
    for node in captured.nodes:
        if node.op == "call_function" and node not in alive:
            walker.follow(node)
    return walker.trace


class _Walker:
    def __init__(self, model: nn.Module, captured: Captured, trace: Trace) -> None:
        self.trace = trace
        self.values: dict[str, Any] = {}
        self.known, self.captured, self.refused = named_tensors(model), captured, trace.refused
        self.owners = _owners(model)
        self.born: dict[str, Space] = {}

    def visit(self, node: fx.Node) -> None:
        if node.op == "call_function" and node.target is not operator.getitem:
            self.values[node.name] = self._call(node)
        elif node.op == "call_function":
            source, index = cast(tuple[fx.Node, int], node.args)
            whole = self.values[source.name]
            self.values[node.name] = whole[index] if isinstance(whole, tuple) else _plain(node)
        elif node.name in self.captured.tensors:
            self.values[node.name] = self._parameter(self.captured.tensors[node.name])
        else:
            self.values[node.name] = _plain(node)

    def follow(self, node: fx.Node) -> None:
        """What nothing uses still runs: its readers are cut too, but its values may be anything."""
        atoms = self.trace.atoms
        known = len(atoms.births)
        for used in node.all_input_nodes:
            if used.name not in self.values:
                self.visit(used)
        atoms.idle_tensors |= {birth.tensor for birth in atoms.births[known:]}
        with atoms.idle():
            self.visit(node)

    def finish(self, node: fx.Node, names: tuple[str, ...], outputs: Collection[str]) -> None:
        """Selected outputs keep their shape."""
        found = fx.map_arg(node.args[0], lambda n: n)
        leaves = found if isinstance(found, tuple | list) else [found]
        for number, leaf in enumerate(leaves):
            value = self.values.get(leaf.name) if isinstance(leaf, fx.Node) else None
            name = names[number] if number < len(names) else ""
            if isinstance(value, Space) and (not outputs or name in outputs):
                for factor in value.factors:
                    self.trace.atoms.pin(factor.atoms, OUTPUT)

    def _parameter(self, name: str) -> Space:
        """Fresh atoms along every dimension, once for all names of a tensor."""
        if name not in self.born:
            tensor = self.known[name]
            factors = tuple(
                Factor((dim,), self.trace.atoms.birth(name, dim, size))
                for dim, size in enumerate(tensor.shape)
                if size > 1 and torch.is_floating_point(tensor)
            )
            fixed = "" if factors else self.refused.get(name, "")
            self.born[name] = Space(tuple(tensor.shape), factors, parameter=True, fixed=fixed)
            if name in self.refused:
                for factor in factors:
                    self.trace.atoms.pin(factor.atoms, self.refused[name])
        return self.born[name]

    def _call(self, node: fx.Node) -> Any:
        site = _site(node, self.trace)
        self._check_owners(node, site)
        args = fx.map_arg(list(node.args), lambda n: self.values[n.name])
        kwargs = fx.map_arg(dict(node.kwargs), lambda n: self.values[n.name])
        spaces = spaces_in(*args, *kwargs.values())
        if not site.shapes or not any(space.factors for space in spaces):
            return _unlabelled(site, spaces)
        rule = find(str(node.target))
        if rule is not None:
            try:
                return self._marked(_explained(rule(site, *args, **kwargs), spaces))
            except NotCovered as error:
                reason = f"{site.where}: its rule covers only {error}"
            except Exception as error:  # a rule that fails must not take the plan with it
                reason = f"{site.where}: its rule failed ({type(error).__name__}: {error})"
        else:
            reason = f"{node.target} has no rule ({site.where})"
        for space in spaces:
            site.pin(space, reason)
        return _unlabelled(site, [Space((), fixed=reason)])

    def _marked(self, result: Any) -> Any:
        for space in spaces_in(result):
            for factor in space.factors if not space.parameter else ():
                self.trace.atoms.mark_made(factor.atoms)
        return result

    def _check_owners(self, node: fx.Node, site: Site) -> None:
        """Cut tensors are installed while their module runs: elsewhere a weight is read whole."""
        for used in node.all_input_nodes:
            name = self.captured.tensors.get(used.name)
            if name is not None and not self.owners[id(self.known[name])] & set(site.modules):
                reason = f"'{name}' is read outside of its module, by {site.where}"
                site.pin(self.values[used.name], reason)


def _alive(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """What the outputs depend on; an in-place operation may change what they do."""
    alive: set[fx.Node] = set()
    for node in reversed(nodes):
        in_place = node.op == "call_function" and _name(node).endswith("_")
        if node.op == "output" or in_place or node in alive:
            alive |= {node, *node.all_input_nodes}
    return alive


def _name(node: fx.Node) -> str:
    """``view`` for ``aten.view.default``."""
    parts = str(node.target).split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _owners(model: nn.Module) -> dict[int, set[str]]:
    """The modules that hold each tensor, by identity."""
    found: dict[int, set[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                found.setdefault(id(tensor), set()).add(name)
    return found


def _site(node: fx.Node, trace: Trace) -> Site:
    stack = node.meta.get("nn_module_stack") or {}
    modules = tuple(str(entry[0]).partition("@")[0] for entry in stack.values())
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    shapes = tuple(tuple(v.shape) for v in values if isinstance(v, Tensor))
    return Site(trace, _name(node), modules, shapes, _written(_name(node), node))


def _written(name: str, node: fx.Node) -> str:
    """``view(-1, 112)``: the operator with the sizes that stand in it."""
    sizes = node.args[1] if len(node.args) > 1 else None
    if isinstance(sizes, list | tuple) and sizes and all(isinstance(n, int) for n in sizes):
        return f"{name}({', '.join(map(str, sizes))})"
    return name


def _plain(node: fx.Node) -> Space | None:
    value = node.meta.get("val")
    return Space(tuple(value.shape), fixed=INPUT) if isinstance(value, torch.Tensor) else None


def _unlabelled(site: Site, spaces: list[Space]) -> Any:
    fixed = next((s.fixed for s in spaces if s.fixed), "")
    results = tuple(Space(shape, fixed=fixed) for shape in site.shapes)
    return results if len(results) != 1 else results[0]


def _explained(result: Any, spaces: list[Space]) -> Any:
    """Results without a reason of their own take the first that comes in."""
    if isinstance(result, tuple):
        return tuple(_explained(r, spaces) for r in result)
    fixed = next((s.fixed for s in spaces if s.fixed), "")
    return result if result.fixed or not fixed else replace(result, fixed=fixed)
