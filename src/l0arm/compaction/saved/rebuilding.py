"""The structure of a saved network, cut from the original by the code that compaction uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from l0arm.compaction.saved.description import Description
from l0arm.compaction.saved.weights import Fact, SavedError, facts_of, tensors_once
from l0arm.gating import Group
from l0arm.gating.attention import exchange
from l0arm.gating.cutting import cut, select_inputs
from l0arm.gating.draw import Draw
from l0arm.gating.layout import named_tensors, resolve

# What groups that do not fit the model can raise while it is cut by them.
MISFITS = (ValueError, TypeError, AttributeError, LookupError, RuntimeError, OverflowError)


def rebuilt(model: nn.Module, told: Description, where: str) -> nn.Module:
    """The original, cut in place to the shapes and dtypes that the description says."""
    try:
        for name in told.replaced:
            exchange(model, name)
        check_same(facts_of(model), told.original, "the model that the factory makes", where)
        _check_work(model, told.groups, where)
        small, attributes = _cut(model, told)
    except SavedError:
        raise
    except MISFITS as error:  # the groups come from a file, which may say anything
        raise SavedError(f"{where} does not fit the model: {str(error)[:400]}") from error
    if attributes != told.attributes:
        raise SavedError(f"{where} says {told.attributes}, but the cut gives {attributes}")
    check_same(facts_of(small), told.tensors, f"the model cut as {where} says", "the same file")
    _cast(small, told.tensors)
    return small


def _cut(model: nn.Module, told: Description) -> tuple[nn.Module, dict[str, int]]:
    layout = resolve(model, told.groups)
    z = torch.zeros(layout.gates, device=next(iter(named_tensors(model).values())).device)
    for number, kept in enumerate(told.kept):
        z[layout.span(number)][list(kept)] = 1.0
    draw = Draw(layout, z, writes=False)
    cut(model, layout, draw)
    attributes = attributes_of(model, layout.groups)
    return select_inputs(model, layout, draw), attributes


def attributes_of(model: nn.Module, groups: Sequence[Group]) -> dict[str, int]:
    """The integers that count units, as they are; before inputs are selected."""
    modules = dict(model.named_modules())
    return {
        f"{patch.module}.{patch.attribute}": getattr(modules[patch.module], patch.attribute)
        for group in groups
        for patch in group.patches
    }


def check_same(
    found: Mapping[str, Fact],
    wanted: Mapping[str, Fact],
    where: str,
    by: str,
    *,
    exact: bool = False,
) -> None:
    """The same tensors with the same shapes and kinds; unless ``exact``, floats of any precision.

    A model may have been cast after it was made.
    """
    for name in sorted(found.keys() ^ wanted.keys()):
        here, there = (where, by) if name in found else (by, where)
        raise SavedError(f"the tensor {name[:80]!r} is in {here}, but not in {there}")
    for name, fact in wanted.items():
        same = _loose(found[name]) == _loose(fact)
        if found[name].shape != fact.shape or not same or (exact and found[name] != fact):
            raise SavedError(
                f"the tensor {name[:80]!r} is {found[name]} in {where}, but {fact} in {by}"
            )


def _loose(fact: Fact) -> str:
    return "float" if "float" in fact.dtype else fact.dtype


def _check_work(model: nn.Module, groups: Sequence[Group], where: str) -> None:
    """To lay out groups takes memory for every position that a slice can cut: bound it."""
    tensors = named_tensors(model)
    sizes = {name: max((*tensor.shape, 1)) for name, tensor in tensors.items()}
    work = sum(
        sizes.get(piece.tensor, 0)
        for group in groups
        for piece in (*group.reads, *group.makes, *group.counts)
    )
    most = 10**5 + 8 * sum(tensor.numel() for tensor in tensors.values())
    if work > most:
        raise SavedError(f"{where} has groups that cut {work:,} positions, more than {most:,}")


def _cast(model: nn.Module, told: Mapping[str, Fact]) -> None:
    for name, tensor in tensors_once(model).items():
        tensor.data = tensor.data.to(getattr(torch, told[name].dtype))
