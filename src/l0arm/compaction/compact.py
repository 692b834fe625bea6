"""Compaction: the transform of ``groups/slicing.py`` with z-bar (Eq. 14), made permanent."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from l0arm.compaction.attributes import update_attributes
from l0arm.compaction.dead import follow_dead
from l0arm.compaction.optimizer import Transfer
from l0arm.compaction.selection import InputSelection
from l0arm.groups import Gated
from l0arm.groups.draw import Draw
from l0arm.groups.layout import Layout, TensorCut, named_tensors
from l0arm.groups.slicing import theta


def compact(gated: Gated, *, optimizer: torch.optim.Optimizer | None = None) -> nn.Module:
    """A plain, smaller ``nn.Module`` that computes what ``gated.eval()`` computes.

    z-bar is folded into the weights that read a unit; structure that no longer reaches the
    output is followed both ways. With ``optimizer``, it afterwards holds the small network's
    parameters with its state cut to match, and no longer holds phi.
    """
    draw = final_draw(gated)
    gated.warn_of_empty(draw)
    transfer = None if optimizer is None else Transfer(optimizer, gated, draw)
    small = cut_copy(gated, draw)
    if transfer is not None:
        transfer(small, None)
    return select_inputs(small, gated.layout, draw)


def final_draw(gated: Gated) -> Draw:
    """z-bar (Eq. 14) without the units that nothing reads any more."""
    z = follow_dead(gated.layout, gated.deterministic())
    return Draw(gated.layout, z, writes=False)


def cut_copy(gated: Gated, draw: Draw) -> nn.Module:
    """A copy of the model without hooks, every tensor cut by the draw for good."""
    gated.engine.detach()
    try:
        small = copy.deepcopy(gated.model)
    finally:
        gated.engine.attach(gated.model)
    cut(small, gated.layout, draw)
    return small


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
        for home in (module._parameters, module._buffers):
            for key, tensor in home.items():
                if id(tensor) in new:
                    home[key] = new[id(tensor)]  # type: ignore[assignment]
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
            module = InputSelection(model.get_submodule(name), dim, local)
            if not name:
                return module
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, module)
    return model
