"""Validation of groups, gates and estimators. Errors name the group and the way out."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Container, Sequence

import torch
from torch import Tensor, nn

from l0arm.contracts import Estimator, Gates
from l0arm.gating.group import Group, Norm, Slice


def named(tensors: dict[str, Tensor], group: Group, piece: Slice) -> Tensor:
    """The tensor that a slice names. Errors list the nearest names."""
    if piece.tensor not in tensors:
        near = _nearest(piece.tensor, tensors)
        raise ValueError(
            f"group '{group.name}' names the tensor '{piece.tensor}', which the model does not "
            f"have; nearest names: {near}"
        )
    # weight_norm has two originals. Their rows make those of the weight, but nothing else of it.
    is_made = piece.tensor.endswith(("original0", "original1")) and piece not in group.reads
    if ".parametrizations." in f".{piece.tensor}" and not is_made:
        raise ValueError(
            f"group '{group.name}' names '{piece.tensor}', from which a parametrization computes "
            "the weight: to cut it is not to cut the weight; make the weight plain first with "
            "torch.nn.utils.parametrize.remove_parametrizations"
        )
    return tensors[piece.tensor]


def check_names(groups: Sequence[Group]) -> None:
    """Refuse an empty list of groups, and names that are not unique."""
    if not groups:
        raise ValueError("no groups: nothing would be gated; pass at least one Group")
    times = Counter(group.name for group in groups)
    repeated = sorted(name for name, number in times.items() if number > 1)
    if repeated:
        raise ValueError(f"group names must be unique, but {repeated} stand more than once")


def check_modules(model: nn.Module, groups: Sequence[Group]) -> None:
    """Refuse modules that do not exist, and patches of what is not an integer attribute."""
    modules = dict(model.named_modules())
    for group in groups:
        named = [patch.module for patch in group.patches]
        named += [norm.module for norm in group.norms]
        named += [widen.module for widen in group.widens]
        named += [borrow.module for borrow in group.borrows]
        named += [resize.module for resize in group.resizes]
        named += [pick.module for pick in group.picks]
        named += [route.module for route in group.routes]
        named += [dot.module for dot in group.dots]
        named += [name for branch in group.branches for name in branch.modules]
        if group.select is not None:
            named.append(group.select.tensor)
        for name in named:
            if name not in modules:
                raise ValueError(
                    f"group '{group.name}' names the module '{name}', which the model does not "
                    f"have; nearest names: {_nearest(name, modules)}"
                )
        for patch in group.patches:
            if type(vars(modules[patch.module]).get(patch.attribute)) is not int:
                raise ValueError(
                    f"group '{group.name}' patches '{patch.module}.{patch.attribute}', which is "
                    "not an integer attribute; check Patch.attribute"
                )
        for borrow in group.borrows:
            inside = f"{borrow.module}." if borrow.module else ""
            if not borrow.tensor.startswith(inside):
                raise ValueError(
                    f"group '{group.name}' borrows '{borrow.tensor}', which is not inside of "
                    f"'{borrow.module}'; name a module around the one that holds the tensor"
                )
        for norm in group.norms:
            _check_norm(group, norm, modules[norm.module])
        _check_branches(group, modules)


def _check_branches(group: Group, modules: dict[str, nn.Module]) -> None:
    """Refuse branches whose parameters are not all read: zeros for them define a closed branch."""
    read = {piece.tensor for piece in group.reads}
    for branch in group.branches:
        if "" in branch.modules or len(branch.modules) != len(branch.returns):
            raise ValueError(
                f"group '{group.name}' has a branch with the modules {list(branch.modules)} and "
                f"{len(branch.returns)} returns; name modules inside of the model, and for each "
                "what it returns: () for one tensor"
            )
        for name in branch.modules:
            own = [f"{name}.{key}" for key, _ in modules[name].named_parameters()]
            missing = [tensor for tensor in own if tensor not in read]
            if missing:
                raise ValueError(
                    f"group '{group.name}' has the branch '{name}' but does not read "
                    f"'{missing[0]}'; reads must have every parameter of a branch, with all "
                    "positions of dim 0 for its unit and none for the others"
                )


def _check_norm(group: Group, norm: Norm, module: nn.Module) -> None:
    """Refuse a norm whose epsilon is no number; nn.RMSNorm may have None."""
    value = 1.0 if norm.epsilon is None else vars(module).get(norm.epsilon, "")
    if not isinstance(value, float) and not (value is None and isinstance(module, nn.RMSNorm)):
        raise ValueError(
            f"group '{group.name}' has the norm '{norm.module}' with epsilon='{norm.epsilon}', "
            "which is not an attribute with a float; check Norm.epsilon"
        )


def check_gates(estimator: Estimator, gates: Gates, tied: Sequence[Group]) -> None:
    """Refuse an estimator that cannot train these gates, also where weights are tied.

    In inference mode nothing is refused: there, no gates have a graph to judge by.
    """
    if estimator.takes != "any" and not torch.is_inference_mode_enabled():
        wrong = _MISMATCHES[estimator.takes](gates)
        if wrong:
            raise ValueError(f"{type(estimator).__name__} {wrong}")
    _check_tied(estimator, gates, tied)


def _not_binary(gates: Gates) -> str:
    name = type(gates).__name__
    if gates.smooth:
        return (
            f"estimates gradients of gates that are 0 or 1, but {name} draws fractions; use "
            "Pathwise() with them, or Bernoulli() gates"
        )
    if not _learns(gates):
        return (
            f"hangs its gradient on the probs of the gates, but those of {name} have none and phi "
            "would never be trained; use Deterministic() with gates that the method closes "
            "itself, or Bernoulli() gates"
        )
    return ""


def _not_smooth(gates: Gates) -> str:
    if gates.smooth:
        return ""
    return (
        f"differentiates through the draw, but {type(gates).__name__} has no rsample; use gates "
        "such as HardConcrete(), or for gates that are 0 or 1 an estimator of ESTIMATORS, e.g. "
        "DisARM()"
    )


def _not_fixed(gates: Gates) -> str:
    smooth = gates.smooth
    if not smooth and not _learns(gates):
        return ""
    way_out = "Pathwise()" if smooth else "an estimator of ESTIMATORS, e.g. DisARM(),"
    return (
        f"gives phi no gradient, so {type(gates).__name__} would never be trained; use {way_out} "
        "with them, or Fixed() gates"
    )


_MISMATCHES = {"binary": _not_binary, "smooth": _not_smooth, "fixed": _not_fixed}


def _learns(gates: Gates) -> bool:
    """Whether a gradient in probs reaches phi."""
    return gates.probs.requires_grad


def _check_tied(estimator: Estimator, gates: Gates, tied: Sequence[Group]) -> None:
    """Refuse fractional gates, and estimators that need df/dz, where a gate acts twice.

    0 and 1 may act twice, fractions may not.
    """
    if tied and gates.smooth:
        what = f"{type(gates).__name__} draws fractions"
    elif tied and not estimator.drops:
        what = f"{type(estimator).__name__} needs the derivative of the loss in the gates"
    else:
        return
    raise ValueError(
        f"{what}, but group '{tied[0].name}' {why_binary(tied[0])}, where a gate acts twice; use "
        "gates that are 0 or 1 with an estimator that asks for losses only, e.g. "
        f"method='l0-disarm', or {way_out(tied[0])}"
    )


def why_binary(group: Group) -> str:
    """Why the gates of a group must be 0 or 1."""
    if group.closes_makers:
        return f"closes units where they are made, since '{group.mixing[0]}' mixes them"
    if group.branches:
        return "closes residual branches by all their weights"
    if group.routes:
        return "closes experts by their row of the router and all their weights"
    if group.dots:
        return "closes positions of queries and keys by one matrix that makes both"
    return "reads and makes one tensor (tied weights)"


def way_out(group: Group) -> str:
    """What makes fractions possible."""
    if group.branches:
        return "plan without depth=True"
    if group.routes:
        return "plan without experts=True"
    if group.dots:
        return "plan without head_dims=True"
    return "plan without stream=True" if group.closes_makers else "untie the weights"


def check_select(group: Group, taken: Container[str]) -> int:
    """The dimension of the input that a group selects. It must be one reader's, for one group."""
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
    known_names = [n for n in known if n]
    return ", ".join(difflib.get_close_matches(name[:200], known_names, 3, 0.0)) or "none"
