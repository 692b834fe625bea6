"""Tensors, counting attributes and inputs cut for good, by the transform of gating/slicing.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from l0arm.gating import Gated
from l0arm.gating.attributes import update_attributes
from l0arm.gating.copying import copied
from l0arm.gating.dead import follow_dead
from l0arm.gating.draw import Draw
from l0arm.gating.layout import Layout, TensorCut, named_tensors
from l0arm.gating.selection import InputSelection
from l0arm.gating.slicing import theta

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def final_draw(gated: Gated, round_to: int | None = None) -> Draw:
    """z-bar (Eq. 14) without the units that nothing reads any more."""
    return living_draw(gated, gated.deterministic(round_to))


def living_draw(gated: Gated, z: Tensor) -> Draw:
    """Given gates without the units that nothing reads any more."""
    return Draw(gated.layout, follow_dead(gated.layout, z), writes=False)


def cut_copy(gated: Gated, draw: Draw) -> nn.Module:
    """A copy of the model without our hooks, every tensor cut by the draw for good."""
    small = plain_copy(gated, share_hooks=True)
    cut(small, gated.layout, draw)
    return small


def plain_copy(gated: Gated, *, share_hooks: bool) -> nn.Module:
    """The dense model, copied without our hooks.

    Shared, the user's own hooks are those of the original, so that what collects activations goes
    on collecting; else they are copied along, so that a scratch model disturbs nobody.
    """
    gated.engine.check_attached()
    gated.engine.detach()
    try:
        return copied(gated.model, _hooks(gated.model) if share_hooks else {})
    finally:
        gated.engine.attach(gated.model)


def _hooks(model: nn.Module) -> dict[int, Any]:
    """The user's hooks by id; a method of one of the model's own modules goes with its module."""
    own = {id(module) for module in model.modules()}
    hooks = [h for m in model.modules() for kind in HOOKS for h in getattr(m, kind).values()]
    return {id(hook): hook for hook in hooks if id(getattr(hook, "__self__", None)) not in own}


def cut(model: nn.Module, layout: Layout, draw: Draw) -> None:
    """Cut a plain model in place: its attributes that count units, and every tensor."""
    _set_patched(model, layout, draw)
    _cut_tensors(model, layout, draw)


def _cut_tensors(model: nn.Module, layout: Layout, draw: Draw) -> None:
    """Replace every tensor by its cut, under all of its names, so that a tied weight stays tied."""
    known = named_tensors(model)
    cuts = {id(known[name]): (known[name], spec) for name, spec in layout.tensors.items()}
    new = {key: _cut(tensor, spec, draw) for key, (tensor, spec) in cuts.items()}
    for module in model.modules():
        changed = False
        for home in (module._parameters, module._buffers):
            for key in [key for key, tensor in home.items() if id(tensor) in new]:
                home[key] = new[id(home[key])]  # type: ignore[assignment]
                changed = True
        if changed:  # to read a weight may compute it (spectral norm)
            update_attributes(module)


def _set_patched(model: nn.Module, layout: Layout, draw: Draw) -> None:
    """Attributes that count units lose their closed ones."""
    for number, group in enumerate(layout.groups):
        for patch in group.patches:
            module = model.get_submodule(patch.module)
            closed = group.units - draw.units_kept(number)
            value = getattr(module, patch.attribute) - patch.per_unit * closed
            setattr(module, patch.attribute, value)


def _cut(tensor: Tensor, spec: TensorCut, draw: Draw) -> Tensor:
    with torch.no_grad():
        cut = theta(tensor, spec, draw).clone()
    is_parameter = isinstance(tensor, nn.Parameter)
    return nn.Parameter(cut, tensor.requires_grad) if is_parameter else cut


def select_inputs(model: nn.Module, layout: Layout, draw: Draw) -> nn.Module:
    """Where gates are finer than the producer can drop, the reader picks its inputs itself."""
    for name, (dim, axis) in layout.selections.items():
        local = draw.kept(axis).local
        if local is not None:
            reader = model.get_submodule(name)
            module = InputSelection(reader, dim, local).train(reader.training)
            if not name:
                return module
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, module)
    return model
