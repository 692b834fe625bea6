"""From a model to a graph of its operators, by ``torch.export``. The model is left unchanged."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import fx, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from l0arm.equality.difference import tensors_in
from l0arm.equality.example import Example, without_side_effects
from l0arm.equality.scratch import first_line
from l0arm.gating import Gated
from l0arm.gating.calls import NOTED, SIZED, sizes_of
from l0arm.gating.cutting import copy_model
from l0arm.gating.layout import named_tensors
from l0arm.gating.resizing import place_of
from l0arm.planning.rules.base import Call

PLACE = "l0arm_place"  # under this key, a node of the graph has the call that it is
LOOP, GRAPH = "eager", "batched_mm"  # ways of transformers to run experts
REWRITERS = ("WeightNorm", "SpectralNorm", "BasePruningMethod")  # hooks of torch.nn.utils


class PlanError(ValueError):
    """The model, the example inputs or the arguments do not allow a plan.

    The message names the cause and what to do about it.

    Example:
        >>> import l0arm
        >>> try:
        ...     l0arm.plan(nn.ReLU(), torch.rand(1, 4))
        ... except PlanError as error:
        ...     print(error)
        ReLU has no parameters: there is nothing to gate
    """


@dataclass(frozen=True, eq=False)
class Captured:
    """A graph, and how its placeholders and outputs are named in the model."""

    nodes: tuple[fx.Node, ...]
    tensors: Mapping[str, str]  # placeholder -> first name of the parameter or buffer
    outputs: tuple[str, ...]  # key or number of every leaf of the output, e.g. "logits" or "0"

    def select_outputs(
        self, outputs: Sequence[str | int] | str | int | None = None
    ) -> frozenset[str]:
        """The outputs that a user names by key or number; empty means all."""
        given = [outputs] if isinstance(outputs, str | int) else outputs or ()
        for name in given if isinstance(given, list | tuple | set | frozenset) else [given]:
            if not isinstance(name, str | int):
                raise PlanError(f"outputs takes keys or numbers of outputs; got {name!r}")
        names = [str(name) for name in given]
        unknown = [name for name in names if name not in self.outputs]
        if unknown:
            there = ", ".join(dict.fromkeys(self.outputs)) or "none"
            raise PlanError(f"the model has no output {unknown[0]!r}; there are {there}")
        return frozenset(names)


def check_model(model: nn.Module) -> None:
    """Raise unless the model is a plain one, with weights that have values of their own."""
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
    for name, tensor in named_tensors(model).items():
        if is_lazy(tensor):
            raise PlanError(
                f"'{name}' has no shape yet (a lazy layer): run the model once on an input, then "
                "plan it"
            )
        if tensor.is_meta:
            raise PlanError(
                f"'{name}' is on the meta device and has no values to try: make the model on a "
                "real device, or use to_empty(device='cpu') and load its weights"
            )
    for name, module in model.named_modules():
        hooks = module._forward_pre_hooks.values()
        if any(base.__name__ in REWRITERS for hook in hooks for base in type(hook).__mro__):
            raise PlanError(
                f"the weight of '{name}' is rewritten before each call (weight_norm, "
                "spectral_norm or prune of torch.nn.utils); make it plain first, e.g. with "
                "remove_weight_norm"
            )


def copy_to_plan(model: nn.Module) -> nn.Module:
    """A deep copy on which everything is tried."""
    try:
        return copy_model(model)
    except ValueError as error:
        raise PlanError(str(error)) from None


def capture(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Captured:
    """Run ``torch.export`` in eval mode, without gradients and caches."""
    with without_side_effects(model):
        own = Example(tuple(args), dict(kwargs)).map(torch.clone)  # a forward may write into it
        try:
            output = model(*own.args, **own.kwargs)
        except Exception as error:
            raise PlanError(
                f"the model does not run on the example inputs: {first_line(error)}; check their "
                "shapes, dtypes and device"
            ) from None
        _check_numbers(output)
        try:
            with (
                _silence(),
                fx_traceback.preserve_node_meta(),
                _Places(),
                _without_loops(model),
            ):  # torch loads the tracer itself on the first call, not at import
                exported = torch.export.export(model, tuple(args), dict(kwargs), strict=False)
        except Exception as error:
            raise PlanError(
                f"torch.export cannot capture the model: {_cause(error, output)}; "
                "plan a part of the model without it, or write the groups by hand"
            ) from None
    first = first_names(model)
    known = named_tensors(model)
    signature = exported.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    tensors = {node: first[id(known[name])] for node, name in names.items() if name in known}
    return Captured(tuple(exported.graph.nodes), tensors, _output_names(output))


def first_names(model: nn.Module) -> dict[int, str]:
    """The first name of every tensor, by identity: tied weights have several names."""
    first: dict[int, str] = {}
    for name, tensor in named_tensors(model).items():
        first.setdefault(id(tensor), name)
    return first


def _check_numbers(output: Any) -> None:
    """Raise if no output holds a finite number: every plan would look right on such an example."""
    floats = [t for _, t in tensors_in(output) if t.is_floating_point() or t.is_complex()]
    if floats and not any(bool(t.isfinite().any()) for t in floats):
        what = "empty" if not any(t.numel() for t in floats) else "NaN or infinite everywhere"
        raise PlanError(
            f"the output of the model on the example inputs is {what}: nothing can be tried on it; "
            "pass inputs like those of real data"
        )


class _Places(TorchFunctionMode):
    """Notes at nodes of the graph with sizes or operands where in the forward their call is."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        sizes = sizes_of(func, args, kwargs or {}) if func in SIZED else None
        if sizes is None and getattr(func, "__name__", "") not in NOTED:
            return func(*args, **(kwargs or {}))
        place, caller = place_of(sys._getframe(1))
        note = {} if caller is None else {PLACE: Call(place, tuple(sizes or ()))}
        with fx_traceback.annotate(note):
            return func(*args, **(kwargs or {}))


@contextmanager
def _without_loops(model: nn.Module) -> Iterator[None]:
    """Let experts of transformers run in a way that has a graph, for the length of a capture."""
    configs: dict[int, Any] = {
        id(c): c for c in (getattr(m, "config", None) for m in model.modules())
    }
    looping = [c for c in configs.values() if getattr(c, "_experts_implementation", "") == LOOP]
    for config in looping:
        config._experts_implementation = GRAPH
    try:
        yield
    finally:
        for config in looping:
            config._experts_implementation = LOOP


@contextmanager
def _silence() -> Iterator[None]:
    """Keep a failing export from printing its graph: the error message says enough."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _output_names(output: Any) -> tuple[str, ...]:
    """The outermost key or number of every leaf of a model's output."""

    def name(entry: Any) -> str:
        keys = (getattr(entry, key) for key in ("key", "idx", "name") if hasattr(entry, key))
        return str(next(keys, entry))

    paths = [path for path, _ in pytree.tree_flatten_with_path(output)[0]]
    return tuple(name(path[0]) if path else "0" for path in paths)


def _cause(error: Exception, output: Any) -> str:
    """Why the export failed, in one line."""
    unknown = next((leaf for leaf in pytree.tree_leaves(output) if is_dataclass(leaf)), None)
    if unknown is not None:
        name = type(unknown).__name__
        return (
            f"it returns {name}, a dataclass that torch does not know; tell it once with "
            f"torch.export.register_dataclass({name})"
        )
    # Compared by name: importing the module that defines the class takes half a second (sympy).
    if type(error).__name__ == "GuardOnDataDependentSymNode":
        return f"{first_line(error)}. Control flow that depends on data has no graph"
    return first_line(error)
