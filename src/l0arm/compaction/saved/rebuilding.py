"""Rebuild a saved network: the original model, cut by the code that compaction uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from l0arm.compaction.provenance import attributes_of
from l0arm.compaction.saved.description import Description
from l0arm.compaction.saved.weights import SavedError, TensorInfo, tensor_infos, tensors_once
from l0arm.gating import Group
from l0arm.gating.attention import exchange
from l0arm.gating.cutting import cut, select_inputs
from l0arm.gating.draw import Draw
from l0arm.gating.layout import named_tensors, resolve
from l0arm.gating.norms import exchange_norms

CUTS = 64  # groups that cut one tensor, on average; the layers of a DenseNet read all before them
# What cutting a model by groups that do not fit it can raise.
MISFITS = (ValueError, TypeError, AttributeError, LookupError, RuntimeError, OverflowError)


def rebuilt(model: nn.Module, description: Description, where: str) -> nn.Module:
    """The original, cut in place to the shapes and dtypes of the description."""
    try:
        for name in description.replaced:
            exchange(model, name)
        exchange_norms(model, description.groups)
        original = description.original
        check_same(tensor_infos(model), original, "the model that the factory makes", where)
        _check_work(model, description.groups, where)
        small, attributes = _cut(model, description)
        _check_attention(small, where)
    except SavedError:
        raise
    except MISFITS as error:  # the groups come from a file, which anybody may have written
        raise SavedError(f"{where} does not fit the model: {str(error)[:400]}") from error
    if attributes != description.attributes:
        said, cut_gives = (str(dict(each))[:200] for each in (description.attributes, attributes))
        raise SavedError(f"{where} says {said}, but the cut gives {cut_gives}")
    for name, value in attributes.items():
        if value < 0:
            raise SavedError(f"{where} closes so many units that {name[:80]!r} would be {value}")
    rename = description.layers.own_name
    tensors = {rename(name): fact for name, fact in description.tensors.items()}
    if len(tensors) < len(description.tensors):
        raise SavedError(f"{where} has tensors of one name twice, when its layers are counted")
    check_same(tensor_infos(small), tensors, f"the model cut as {where} says", "the same file")
    for name, tensor in tensors_once(small).items():
        tensor.data = tensor.data.to(getattr(torch, tensors[name].dtype))
    return small


def _cut(model: nn.Module, description: Description) -> tuple[nn.Module, dict[str, int]]:
    layout = resolve(model, description.groups)
    z = torch.zeros(layout.gates, device=next(iter(named_tensors(model).values())).device)
    for number, kept in enumerate(description.kept):
        z[layout.span(number)][list(kept)] = 1.0
    draw = Draw(layout, z, writes=False)
    cut(model, layout, draw)
    attributes = attributes_of(model, layout.groups)
    return select_inputs(model, layout, draw), attributes


def check_same(
    found: Mapping[str, TensorInfo],
    wanted: Mapping[str, TensorInfo],
    where: str,
    by: str,
    *,
    exact: bool = False,
) -> None:
    """Raise unless names, shapes and dtypes of two sets of tensors are the same.

    Unless ``exact``, floats may have any precision: a model may have been cast after it was made.
    """
    for name in sorted(found.keys() ^ wanted.keys()):
        here, there = (where, by) if name in found else (by, where)
        raise SavedError(f"the tensor {name[:80]!r} is in {here}, but not in {there}")
    for name, fact in wanted.items():
        same = found[name].kind == fact.kind and found[name].shape == fact.shape
        if not same or (exact and found[name] != fact):
            raise SavedError(
                f"the tensor {name[:80]!r} is {found[name]} in {where}, but {fact} in {by}"
            )


def _check_attention(model: nn.Module, where: str) -> None:
    """Refuse attention that lost heads but was not replaced by a module that runs with fewer."""
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            width = module.embed_dim
            whole = {"in_proj_weight": 3 * width, "q_proj_weight": width}
            rows = {key: getattr(module, key) for key in whole}
            if any(t is not None and len(t) != whole[key] for key, t in rows.items()):
                raise SavedError(f"{where} cuts heads of '{name}' without replacing it")


def _check_work(model: nn.Module, groups: Sequence[Group], where: str) -> None:
    """Bound the memory that laying out groups takes: it grows with the positions they cut."""
    tensors = named_tensors(model)
    longest = {name: max((*tensor.shape, 1)) for name, tensor in tensors.items()}
    numbers = {name: tensor.numel() for name, tensor in tensors.items()}
    pieces = [p for group in groups for p in (*group.reads, *group.makes, *group.counts)]
    single = {piece.tensor for piece in pieces if piece.dim is None}  # a gate for each weight
    work = sum((numbers if p.dim is None else longest).get(p.tensor, 1) for p in pieces)
    most = 10**5 + CUTS * sum(longest.values()) + 4 * sum(numbers.get(name, 0) for name in single)
    if work > most:
        raise SavedError(f"{where} has groups that cut {work:,} positions, more than {most:,}")
