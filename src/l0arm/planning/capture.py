"""From a model to a graph of its operators, by ``torch.export``; the model is left as it was."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from l0arm.equality.example import Example
from l0arm.equality.modes import quiet
from l0arm.equality.outputs import tensors_in
from l0arm.gating.layout import named_tensors


class PlanError(ValueError):
    """The model, the inputs or the plan do not allow what was asked."""


@dataclass(frozen=True, eq=False)
class Captured:
    """The graph, which tensor each placeholder is (by its first name), and names of outputs."""

    nodes: tuple[fx.Node, ...]
    tensors: Mapping[str, str]  # placeholder -> first name of the parameter or buffer
    outputs: tuple[str, ...]  # one for each tensor among the outputs, e.g. "logits" or "0"


def capture(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Captured:
    """Run ``torch.export`` in eval mode, without gradients and caches."""
    with quiet(model):
        own = Example(tuple(args), dict(kwargs)).each(torch.clone)  # a forward may write into it
        try:
            output = model(*own.args, **own.kwargs)
        except Exception as error:
            raise PlanError(
                f"the model does not run on the example inputs: {_first_line(error)}; check their "
                "shapes, dtypes and device"
            ) from None
        _check_numbers(output)
        try:
            with _silence():
                exported = torch.export.export(model, tuple(args), dict(kwargs), strict=False)
        except Exception as error:
            raise PlanError(
                f"torch.export cannot capture the model: {_explained(error, output)}; plan a part "
                "of the model without it, or write the groups by hand"
            ) from None
    first = first_names(model)
    known = named_tensors(model)
    signature = exported.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    tensors = {node: first[id(known[name])] for node, name in names.items() if name in known}
    return Captured(tuple(exported.graph.nodes), tensors, output_names(output))


def _check_numbers(output: Any) -> None:
    """On an example without numbers in the output every plan would look right."""
    floats = [t for _, t in tensors_in(output) if t.is_floating_point() or t.is_complex()]
    if floats and not any(bool(t.isfinite().any()) for t in floats):
        what = "empty" if not any(t.numel() for t in floats) else "NaN or infinite everywhere"
        raise PlanError(
            f"the output of the model on the example inputs is {what}: nothing can be tried on it; "
            "pass inputs like those of real data"
        )


@contextmanager
def _silence() -> Iterator[None]:
    """A failing export writes its graph to the terminal and to the log; the message will do."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def first_names(model: nn.Module) -> dict[int, str]:
    """The first name of every tensor, by identity: tied weights arrive under several."""
    first: dict[int, str] = {}
    for name, tensor in named_tensors(model).items():
        first.setdefault(id(tensor), name)
    return first


def output_names(output: Any) -> tuple[str, ...]:
    """The key or number of every leaf of a model's output; the outermost one names it."""
    paths = [path for path, _ in pytree.tree_flatten_with_path(output)[0]]
    return tuple(_key(path[0]) if path else "0" for path in paths)


def _key(entry: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def _explained(error: Exception, output: Any) -> str:
    """What stands in the way, as far as it can be told."""
    unknown = next((leaf for leaf in pytree.tree_leaves(output) if is_dataclass(leaf)), None)
    if unknown is not None:
        name = type(unknown).__name__
        return (
            f"it returns {name}, a dataclass that torch does not know; tell it once with "
            f"torch.export.register_dataclass({name})"
        )
    why = _first_line(error)
    # By its name: the module that defines it imports sympy, for half a second.
    if type(error).__name__ == "GuardOnDataDependentSymNode":
        return f"{why}. Control flow that depends on data has no graph"
    return why


def _first_line(error: Exception) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {text[:200]}"
