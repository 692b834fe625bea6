"""Groups checked against a model: each error names the group, what is wrong and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Container, Sequence

from torch import Tensor, nn

from l0arm.groups.group import Group, Slice


def named(tensors: dict[str, Tensor], group: Group, piece: Slice) -> Tensor:
    """The tensor a slice names, or an error with the nearest names."""
    if piece.tensor not in tensors:
        near = _nearest(piece.tensor, tensors)
        raise ValueError(
            f"group '{group.name}' names the tensor '{piece.tensor}', which the model does not "
            f"have; nearest names: {near}"
        )
    if ".parametrizations." in f".{piece.tensor}":
        raise ValueError(
            f"group '{group.name}' names '{piece.tensor}', from which a parametrization computes "
            "the weight: to cut it is not to cut the weight; make the weight plain first with "
            "torch.nn.utils.parametrize.remove_parametrizations"
        )
    return tensors[piece.tensor]


def check_names(groups: Sequence[Group]) -> None:
    """There are groups, and each has a name of its own."""
    if not groups:
        raise ValueError("no groups: nothing would be gated; pass at least one Group")
    names = [group.name for group in groups]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"group names must be unique, but {repeated} stand more than once")


def check_modules(model: nn.Module, groups: Sequence[Group]) -> None:
    """Modules that groups select or patch exist, with such an integer attribute."""
    modules = dict(model.named_modules())
    for group in groups:
        named = [patch.module for patch in group.patches]
        if group.select is not None:
            named.append(group.select.tensor)
        for name in named:
            if name not in modules:
                raise ValueError(
                    f"group '{group.name}' names the module '{name}', which the model does not "
                    f"have; nearest names: {_nearest(name, modules)}"
                )
        for patch in group.patches:
            if not isinstance(vars(modules[patch.module]).get(patch.attribute), int):
                raise ValueError(
                    f"group '{group.name}' patches '{patch.module}.{patch.attribute}', which is "
                    "not an integer attribute; check Patch.attribute"
                )


def check_gates(estimator: object, gates: object, tied: Sequence[str]) -> None:
    """On weights that a group also makes a gate acts twice: 0 and 1 can, fractions cannot.

    An estimator that asks for df/dz would get it twice.
    """
    if tied and hasattr(gates, "rsample"):
        what = f"{type(gates).__name__} draws fractions"
    elif tied and not getattr(estimator, "drops", True):
        what = f"{type(estimator).__name__} needs the derivative of the loss in the gates"
    else:
        return
    raise ValueError(
        f"{what}, but group '{tied[0]}' reads and makes one tensor (tied weights), where a gate "
        "acts twice; use gates that are 0 or 1 with an estimator that asks for losses only, e.g. "
        "method='l0-disarm', or untie the weights"
    )


def check_select(group: Group, taken: Container[str]) -> int:
    """One reader gathers its input, along one dimension, for one group: that dimension."""
    assert group.select is not None
    module, dim = group.select.tensor, group.select.dim
    if dim is None or len(group.reads) != 1 or group.reads[0].dim is None:
        raise ValueError(
            f"group '{group.name}' selects the input of '{module}': that takes the dimension of "
            "the input (Slice(module, dim=-1)) and exactly one read along a dimension"
        )
    if module in taken:
        raise ValueError(
            f"group '{group.name}' selects the input of '{module}', which another group selects "
            "already; let one group have all its gates"
        )
    return dim


def _nearest(name: str, known: dict[str, Tensor] | dict[str, nn.Module]) -> str:
    return ", ".join(difflib.get_close_matches(name, [n for n in known if n], 3, 0.0)) or "none"
