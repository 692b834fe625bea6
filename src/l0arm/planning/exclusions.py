"""Which layers stay ungated, and why: by the user's patterns, their weights, or the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _WeightNorm

from l0arm.gating.layout import named_tensors
from l0arm.planning._plan import Skipped
from l0arm.planning.atoms import Atoms, Origin
from l0arm.planning.capture import PlanError, first_names
from l0arm.planning.groups import FoundGroup, module_of
from l0arm.planning.rules.base import Trace

PACKED = ("quantized", "bitsandbytes", "torchao", "gptq", "awq")
NOT_REAL = "a gate opens and closes real weights"
UNUSED = "not used when the model runs on the example"

Pattern = str | type[nn.Module]
Patterns = Pattern | Sequence[Pattern]


def matching_modules(model: nn.Module, patterns: Patterns | None, argument: str) -> set[str]:
    """The names of all modules that match a glob or a type, and of everything inside them.

    ``argument`` is what the user passed the patterns as, for errors.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    >>> sorted(matching_modules(model, "1*", "include"))
    ['1', '1.0', '1.1']
    >>> sorted(matching_modules(model, nn.Linear, "include"))
    ['0', '1.1']
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    found: set[str] = set()
    for pattern in _listed(patterns, argument):
        if isinstance(pattern, str):  # "" is the model itself, which no other glob matches
            hits = [n for n in modules if (fnmatchcase(n, pattern) if n else pattern == "")]
        else:
            hits = [name for name, module in modules.items() if isinstance(module, pattern)]
        if not hits:
            raise PlanError(_no_match(pattern, modules))
        for hit in hits:
            inside = f"{hit}." if hit else ""
            found.update(name for name in modules if name == hit or name.startswith(inside))
    return found


def _listed(patterns: Patterns | None, argument: str) -> tuple[Pattern, ...]:
    found: tuple[Any, ...] = () if patterns is None else (patterns,)
    if isinstance(patterns, list | tuple | set | frozenset):
        found = tuple(patterns)
    for pattern in found:
        is_type = isinstance(pattern, type) and issubclass(pattern, nn.Module)
        if not (isinstance(pattern, str) or is_type):
            raise PlanError(
                f"{argument} takes names of layers (globs such as 'layer4.*') or their types; "
                f"got {pattern!r}"
            )
    return found


def _no_match(pattern: Pattern, modules: dict[str, nn.Module]) -> str:
    if isinstance(pattern, str):
        near = get_close_matches(pattern, [name for name in modules if name], 3, 0.0)
        return (
            f"the pattern {pattern!r} matches no layer; nearest names: {', '.join(near) or 'none'}"
        )
    kinds = sorted({type(module).__name__ for module in modules.values()})
    return f"the model has no layer of type {pattern.__name__}; there are {', '.join(kinds)}"


def refused_tensors(
    model: nn.Module, twin: nn.Module, exclude: Patterns | None = None
) -> dict[str, str]:
    """Why tensors are never cut, by the first name of each in ``twin``, a copy of ``model``.

    If there are several reasons, the user's ``exclude`` comes first.
    """
    modules = matching_modules(model, exclude, "exclude")
    names = [name for name in named_tensors(model) if module_of(name) in modules]
    excluded = {name: f"'{module_of(name)}' is excluded" for name in names}
    known, first = named_tensors(twin), first_names(twin)
    refused = {**_uncuttable(twin), **excluded}
    return {first[id(known[name])]: why for name, why in refused.items() if name in known}


def _uncuttable(model: nn.Module) -> dict[str, str]:
    """The reason for every tensor that something else computes or packs, by each of its names."""
    found: dict[str, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        inside = f"{name}." if name else ""
        for reason, keys in ((_kind(module), _tensors(module)), (_packing(module), _own(module))):
            if reason is not None:
                for key in keys:
                    found.setdefault(inside + key, f"'{name or type(module).__name__}' {reason}")
        for key, tensor in module._parameters.items():
            if tensor is not None and not tensor.is_floating_point():
                kind = "is complex" if tensor.is_complex() else "holds integers"
                found.setdefault(inside + key, f"'{inside}{key}' {kind}: {NOT_REAL}")
    return found


def _kind(module: nn.Module) -> str | None:
    """Why nothing inside a module can be cut."""
    if parametrize.is_parametrized(module) and not _has_weight_norms_only(module):
        return "is parametrized: its weight is computed, not held"
    if any(hasattr(module, key) for key in ("lora_A", "lora_B", "lora_embedding_A")):
        return "carries LoRA adapters: merge them first"
    if any(part in type(module).__module__.lower() for part in PACKED):
        return "is quantised: its weight is packed"
    if isinstance(module, nn.MultiheadAttention):
        return "is attention of a kind that cannot be replaced (bias_k, add_zero_attn, hooks)"
    return None


def _has_weight_norms_only(module: nn.Module) -> bool:
    """Whether all parametrizations of a module are weight_norm: its slices can be cut."""
    lists = list(vars(module)["_modules"]["parametrizations"].values())
    return all(len(parts) == 1 and type(parts[0]) is _WeightNorm for parts in lists)


def _packing(module: nn.Module) -> str | None:
    """A tensor of another type packs the weight. The layer's other tensors scale and shift it."""
    held = [p for p in module._parameters.values() if p is not None]
    packed = any(type(p) not in (Tensor, nn.Parameter) for p in held)
    return "is quantised: its weight is packed" if packed else None


def _own(module: nn.Module) -> Iterator[str]:
    """Names of the tensors that the module itself holds."""
    yield from (key for key, tensor in module._parameters.items() if tensor is not None)
    yield from (key for key, tensor in module._buffers.items() if tensor is not None)


def _tensors(module: nn.Module) -> Iterator[str]:
    """Names of all tensors inside, including adapters and originals of parametrizations."""
    yield from (name for name, _ in module.named_parameters(remove_duplicate=False))
    yield from (name for name, _ in module.named_buffers(remove_duplicate=False))


def skipped_layers(
    model: nn.Module, trace: Trace, found: Sequence[FoundGroup], included: Sequence[FoundGroup]
) -> tuple[Skipped, ...]:
    """Layers with weights but no gated units of their own, each with its reason.

    ``found`` are all groups of the graph, ``included`` those that the user wants.
    """
    gated = {s.tensor for f in included for s in f.group.makes}
    left_out = {s.tensor for f in found if f not in included for s in f.group.makes}
    origins: dict[str, list[Origin]] = {}
    for origin in trace.atoms.origins:
        origins.setdefault(origin.tensor, []).append(origin)
    skipped: dict[str, str] = {}
    first = set(first_names(model).values())
    for name, tensor in named_tensors(model).items():
        is_weight = name in first and tensor.dim() > 1 and isinstance(tensor, nn.Parameter)
        if not is_weight or name in gated:
            continue
        reason = _pinned(trace.atoms, origins.get(name)) or trace.refused.get(name, UNUSED)
        reason = "left out by include" if name in left_out else reason
        skipped.setdefault(module_of(name) or name, reason)
    return tuple(Skipped(layer, reason) for layer, reason in skipped.items())


def _pinned(atoms: Atoms, origins: list[Origin] | None) -> str | None:
    """Why the units of a tensor are not cut; None if no value of the graph has units of it.

    The dimension that makes units gives the reason: one that labels values, if there is one.
    """
    if not origins or origins[0].tensor in atoms.unused_tensors:
        return None
    labelling = [origin for origin in origins if atoms.is_label(origin.first)]
    reasons = [atoms.reason(origin.first) for origin in labelling or origins]
    reason = next((reason for reason in reasons if reason), None)
    return reason or "all its units go together or nothing reads them: there is nothing to choose"
