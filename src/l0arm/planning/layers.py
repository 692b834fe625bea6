"""The layers of a captured network and what feeds each, for the picture of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, fx, nn

from l0arm.planning.capture import Captured
from l0arm.planning.picture import Layer
from l0arm.planning.rules.base import Trace
from l0arm.planning.walk import used_nodes


def find_layers(model: nn.Module, captured: Captured, trace: Trace) -> tuple[Layer, ...]:
    """The modules with weights of their own, in the order of the network, and where they join.

    Where an operation outside of any layer has inputs from several layers, such as a sum, it is an
    entry of its own. So a residual stream has one line per sum and not one per pair of layers.
    """
    owners = {name: module for name, module in model.named_modules() if _has_weights(module)}
    used = used_nodes(captured.nodes)
    feeding: dict[fx.Node, frozenset[str]] = {}  # the entries that a value comes from
    inputs: dict[str, dict[str, None]] = {}  # of every entry, in order
    joined: dict[frozenset[str], str] = {}
    for node in captured.nodes:
        if node not in used or node.op != "call_function":
            continue
        sources = [feeding[one] for one in node.all_input_nodes if feeding.get(one)]
        owner = _owner(node, owners)
        if owner is not None:
            known = inputs.setdefault(owner, {})
            known.update(dict.fromkeys(s for some in sources for s in sorted(some) if s != owner))
            feeding[node] = frozenset([owner])
            continue
        together = frozenset().union(*sources)
        if len(together) > 1 and _is_float(node):
            if together not in joined:
                joined[together] = f"{str(node.target).split('.')[1]} {len(joined) + 1}"
                inputs[joined[together]] = dict.fromkeys(sorted(together))
            together = frozenset([joined[together]])
        feeding[node] = together
    return tuple(_layer(name, owners, inputs[name], trace) for name in inputs)


def _layer(
    name: str, owners: Mapping[str, nn.Module], inputs: Iterable[str], trace: Trace
) -> Layer:
    module = owners.get(name)
    if module is None:
        return Layer(name, name.partition(" ")[0], 0, 0, tuple(inputs), join=True)
    weights = sum(p.numel() for p in module.parameters(recurse=False))
    macs = sum(work.macs for work in trace.work if name in work.modules)
    kind, own = type(module).__name__, {id(p) for p in module.parameters(recurse=False)}
    first = next(n for n, m in owners.items() if own & {id(p) for p in m.parameters(recurse=False)})
    kind = kind if first == name else f"{kind}, tied to {first}"
    return Layer(name, kind, weights, macs, tuple(inputs))


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None


def _owner(node: fx.Node, owners: Mapping[str, nn.Module]) -> str | None:
    """The innermost layer that an operation runs in. The model itself is none."""
    stack = node.meta.get("nn_module_stack") or {}
    names = [str(entry[0]).partition("@")[0] for entry in stack.values()]
    return names[-1] if names and names[-1] and names[-1] in owners else None


def _is_float(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()
