"""The walk through a captured graph: the rule of every operator says how units pass."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _NormBase

from l0arm.gating import Borrow, Norm
from l0arm.gating.layout import named_tensors
from l0arm.planning.capture import PLACE, Captured
from l0arm.planning.rules.base import INPUT, NotCovered, Site, Trace, find, spaces_in
from l0arm.planning.rules.experts import NUMBERED, settle_routers
from l0arm.planning.space import Factor, Space

OUTPUT = "an output of the model keeps its shape"


def walk(
    model: nn.Module,
    captured: Captured,
    refused: Mapping[str, str],
    outputs: Collection[str],
    norms: Mapping[str, Norm] | None = None,
    *,
    stream: bool = False,
    experts: bool = False,
    head_dims: bool = False,
) -> Trace:
    """Everything that the graph says about units.

    Tensors in ``refused`` are pinned with their reason. The named ``outputs`` keep their shape, or
    all of them if it is empty. With ``stream``, units pass the ``norms``, by name of the module,
    and other operations that go on running over all of them. With ``experts``, units may be those
    of a mixture. With ``head_dims``, units are positions within heads where whole heads would be
    units. They pass the norms, too.
    """
    kept = tuple(sorted(outputs))
    passed = (norms or {}) if stream or head_dims else {}
    trace = Trace(refused, kept, norms=passed, widens=stream, experts=experts, head_dims=head_dims)
    walker = _Walker(model, captured, trace)
    used = used_nodes(captured.nodes)
    for node in captured.nodes:
        if node.op == "output":
            walker.pin_outputs(node)
        elif node in used:
            walker.visit(node)
    for node in captured.nodes:
        if node.op == "call_function" and node not in used:
            walker.visit_unused(node)
    settle_routers(trace)
    return trace


class _Walker:
    """The space of every value of the graph so far."""

    def __init__(self, model: nn.Module, captured: Captured, trace: Trace) -> None:
        self.captured, self.trace = captured, trace
        self.values: dict[str, Any] = {}  # by node: a Space, a tuple of them, or None
        self.parameters: dict[str, Space] = {}  # by the first name of each tensor
        self.tensors, self.owners = named_tensors(model), _owners(model)
        self.constants = {
            f"{name}.{key}"
            for name, module in model.named_modules()
            for key in module._buffers
            if not isinstance(module, _NormBase)
        }  # such as the frequencies of rotary embeddings

    def visit(self, node: fx.Node) -> None:
        """Compute the space of one node."""
        if node.op == "call_function" and node.target is not operator.getitem:
            result = self._call(node)
            sources = spaces_in([self.values[used.name] for used in node.all_input_nodes])
            constant = bool(sources) and all(source.constant for source in sources)
            self.values[node.name] = _with_constant(result, constant)
        elif node.op == "call_function":
            source, index = cast(tuple[fx.Node, int], node.args)
            whole = self.values[source.name]
            self.values[node.name] = whole[index] if isinstance(whole, tuple) else _input(node)
        elif node.name in self.captured.tensors:
            self.values[node.name] = self._parameter(self.captured.tensors[node.name])
        else:
            self.values[node.name] = _input(node)

    def visit_unused(self, node: fx.Node) -> None:
        """A node that reaches no output still runs: weights there are cut too, but pin nothing."""
        atoms = self.trace.atoms
        known = len(atoms.origins)
        for used in node.all_input_nodes:
            if used.name not in self.values:
                self.visit(used)
        atoms.unused_tensors |= {origin.tensor for origin in atoms.origins[known:]}
        with atoms.unused():
            self.visit(node)

    def pin_outputs(self, node: fx.Node) -> None:
        """Pin the units of the outputs that keep their shape."""
        found = fx.map_arg(node.args[0], lambda n: n)
        leaves = found if isinstance(found, tuple | list) else [found]
        names, kept = self.captured.outputs, self.trace.outputs
        for number, leaf in enumerate(leaves):
            value = self.values.get(leaf.name) if isinstance(leaf, fx.Node) else None
            name = names[number] if number < len(names) else ""
            if isinstance(value, Space) and (not kept or name in kept):
                for factor in value.factors:
                    self.trace.atoms.pin(factor.atoms, OUTPUT)
                if value.numbers is not None:
                    self.trace.atoms.pin(value.numbers, OUTPUT)

    def _parameter(self, name: str) -> Space:
        """New atoms along every dimension, once for all names of a tensor."""
        if name not in self.parameters:
            tensor, reason = self.tensors[name], self.trace.refused.get(name)
            if self.trace.head_dims and name in self.constants:
                self.parameters[name] = Space(tuple(tensor.shape), parameter=True, constant=True)
                return self.parameters[name]
            factors = tuple(
                Factor((dim,), self.trace.atoms.create(name, dim, size))
                for dim, size in enumerate(tensor.shape)
                if size > 1 and torch.is_floating_point(tensor)
            )
            fixed = "" if factors else reason or ""
            self.parameters[name] = Space(
                tuple(tensor.shape), factors, parameter=True, constant=True, fixed=fixed
            )
            if reason is not None:
                for factor in factors:
                    self.trace.atoms.pin(factor.atoms, reason)
        return self.parameters[name]

    def _call(self, node: fx.Node) -> Any:
        """Apply the operator's rule. Without one, all units that come in are pinned."""
        site = _site(node, self.trace)
        self._note_foreign_weights(node, site)
        args = fx.map_arg(list(node.args), lambda n: self.values[n.name])
        kwargs = fx.map_arg(dict(node.kwargs), lambda n: self.values[n.name])
        spaces = spaces_in(*args, *kwargs.values())
        scaled = node.kwargs.get("scale") is not None
        site = replace(site, operands=tuple(spaces), scaled=scaled)
        fixed = next((s.fixed for s in spaces if s.fixed), "")
        numbers = [space.numbers for space in spaces if space.numbers is not None]
        if numbers and site.op not in NUMBERED:
            for atoms in numbers:
                site.atoms.pin(atoms, f"{site.where} computes with their numbers")
            numbers = []
        if not site.shapes or not (numbers or any(space.factors for space in spaces)):
            return _unlabelled(site, fixed)
        rule = find(str(node.target))
        if rule is not None:
            try:
                return self._labelled(rule(site, *args, **kwargs), fixed)
            except NotCovered as error:
                reason = f"{site.where}: its rule covers only {error}"
            except Exception as error:  # a rule that fails must not break the whole plan
                reason = f"{site.where}: its rule failed ({type(error).__name__}: {error})"
        else:
            reason = f"{node.target} has no rule ({site.where})"
        for space in spaces:
            site.pin(space, reason)
        return _unlabelled(site, reason)

    def _labelled(self, result: Any, fixed: str) -> Any:
        """What a rule returned, marked as made. ``fixed`` is the reason for results without one."""
        if isinstance(result, tuple):
            return tuple(self._labelled(one, fixed) for one in result)
        if not result.parameter:
            for factor in result.factors:
                self.trace.atoms.mark_made(factor.atoms)
        return result if result.fixed or not fixed else replace(result, fixed=fixed)

    def _note_foreign_weights(self, node: fx.Node, site: Site) -> None:
        """A cut tensor is installed while its module runs, or one around it that reads it."""
        for used in node.all_input_nodes:
            name = self.captured.tensors.get(used.name)
            if name is None:
                continue
            names = self.owners[id(self.tensors[name])]
            if {own.rpartition(".")[0] for own in names} & set(site.modules):
                continue
            loans = [Borrow(m, n) for m in site.modules for n in names if _inside(n, m)]
            innermost = [loan for loan in loans if loan.module == loans[-1].module]
            known = self.trace.borrowed.setdefault(name, [])
            known += [loan for loan in innermost if loan not in known]
            if not loans:
                reason = f"'{name}' is read outside of its module, by {site.where}"
                site.pin(self.values[used.name], reason)


def used_nodes(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """The nodes that outputs depend on. An in-place operation counts: it may change one."""
    used: set[fx.Node] = set()
    for node in reversed(nodes):
        in_place = node.op == "call_function" and _name(node).endswith("_")
        if node.op == "output" or in_place or node in used:
            used |= {node, *node.all_input_nodes}
    return used


def _inside(tensor: str, module: str) -> bool:
    """Whether the module of this name contains the one that holds the tensor."""
    return not module or tensor.startswith(f"{module}.")


def _owners(model: nn.Module) -> dict[int, list[str]]:
    """All names of each tensor, by its identity."""
    found: dict[int, list[str]] = {}
    for name, tensor in named_tensors(model).items():
        found.setdefault(id(tensor), []).append(name)
    return found


def _site(node: fx.Node, trace: Trace) -> Site:
    stack = node.meta.get("nn_module_stack") or {}
    modules = tuple(str(entry[0]).partition("@")[0] for entry in stack.values())
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    shapes = tuple(tuple(v.shape) for v in values if isinstance(v, Tensor))
    written = name = _name(node)
    sizes = node.args[1] if len(node.args) > 1 else None
    if isinstance(sizes, list | tuple) and sizes and all(isinstance(n, int) for n in sizes):
        written = f"{name}({', '.join(map(str, sizes))})"
    call = (node.meta.get("custom") or {}).get(PLACE)
    return Site(trace, name, modules, shapes, written, call, _parts(node))


def _parts(node: fx.Node) -> tuple[tuple[int, int], ...]:
    """Start and stop of all slices that the same value has along the same dimension."""
    if _name(node) != "slice":
        return ()
    source, dim = node.args[0], node.args[1] if len(node.args) > 1 else 0
    alike = [n for n in cast(fx.Node, source).users if n.target == node.target]
    given = [(*n.args[1:], *(None,) * (5 - len(n.args))) for n in alike]
    size = cast(Tensor, cast(fx.Node, source).meta["val"]).shape[cast(int, dim)]
    found = [slice(a, b).indices(size)[:2] for d, a, b, *_ in given if (d or 0) == dim]
    return tuple(sorted(set(found)))


def _name(node: fx.Node) -> str:
    """``view`` for ``aten.view.default``."""
    parts = str(node.target).split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _input(node: fx.Node) -> Space | None:
    """The space of a value that depends on no parameter; None for anything but a tensor."""
    value = node.meta.get("val")
    return Space(tuple(value.shape), fixed=INPUT) if isinstance(value, torch.Tensor) else None


def _with_constant(result: Any, constant: bool) -> Any:
    """The results, marked as depending on parameters alone or not."""
    if isinstance(result, tuple):
        return tuple(_with_constant(one, constant) for one in result)
    return replace(result, constant=constant) if isinstance(result, Space) else result


def _unlabelled(site: Site, fixed: str) -> Any:
    """Results without units."""
    results = tuple(Space(shape, fixed=fixed) for shape in site.shapes)
    return results if len(results) != 1 else results[0]
