"""Group lasso (GL) with proximal steps, which give exact zeros.

Wen, Wu, Wang, Chen, Li, "Learning Structured Sparsity in Deep Neural Networks", 2016, use the same
penalty with subgradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from l0arm.contracts import Method, Stage
from l0arm.estimators import Deterministic
from l0arm.gates import Fixed
from l0arm.gating import Gated, Group, Slice
from l0arm.gating.layout import named_tensors
from l0arm.methods.stages import check_parts, never
from l0arm.methods.weights import OnePerGroup, alive_units
from l0arm.penalties.norms import per_unit
from l0arm.penalties.strength import Strength, checked, per_group


def group_lasso(lam: Strength, *, pretrain: float = 0.1, finetune: float = 0.2) -> Method:
    """Minimise data loss + lam sum_g sqrt(|g|) ||theta_g||_2. A unit that reaches 0 is closed.

    The penalty acts in the middle stage only, between plain training and fine-tuning.

    Args:
        lam: The strength of the penalty. One number, or one per group.
        pretrain: The share of the epochs before the penalty. 0 leaves the stage out.
        finetune: The share of the epochs after it. 0 leaves the stage out.

    Returns:
        The method, for ``sparsify(model, method=...)``.

    Raises:
        ValueError: ``lam`` is negative or not finite, or the shares leave no epochs for the
            penalty.

    Example:
        >>> from l0arm.methods import group_lasso
        >>> [stage.name for stage in group_lasso(1e-3, finetune=0).stages]
        ['pretrain', 'shrink']
    """
    check_parts("to shrink in", pretrain=pretrain, finetune=finetune)
    before = (Stage("pretrain", pretrain, penalty=never),) if pretrain else ()
    after = (Stage("finetune", finetune, penalty=never),) if finetune else ()
    return Method(
        "group-lasso",
        Fixed(),
        Deterministic(),
        stages=(*before, Stage("shrink", 1 - pretrain - finetune), *after),
        after_step=ProximalStep(checked(lam)),
        check=OnePerGroup(lam, "lam"),
    )


@dataclass(frozen=True)
class ProximalStep:
    """``theta_g <- theta_g max(0, 1 - lr lam sqrt(|g|) / ||theta_g||)`` for every unit g.

    This is the proximal operator of lr lam sqrt(|g|) ||.||. With momentum m, a constant gradient
    moves the weights by lr / (1 - m) per step, which then replaces lr. (Adam's steps have no common
    lr. Its scalar rate is used, and lam has another meaning.) A unit consists of the weights it
    counts and the bias of the layer that makes it: otherwise a filter without a kernel would stay
    alive by its bias.
    """

    lam: Strength

    def __call__(self, gated: Gated, optimizer: torch.optim.Optimizer) -> None:
        if not gated.penalty_weight:
            return
        rates = _rates(gated, optimizer)
        lr = rates["lr"] / (1 - rates.get("momentum", 0.0)) * gated.penalty_weight
        tensors = named_tensors(gated.model)
        sizes = gated.per_group(gated.sizes)
        with torch.no_grad():
            for lam, group in zip(per_group(self.lam, gated.groups), gated.groups, strict=True):
                if lam:
                    shrink(group, tensors, lr * lam * sizes[group.name].sqrt())
            gated.phi.copy_(alive_units(gated))


def _rates(gated: Gated, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The parameter group of the optimizer that holds the first counted weight."""
    counted = next(piece.tensor for group in gated.groups for piece in group.counts)
    weight = named_tensors(gated.model)[counted]
    for group in optimizer.param_groups:
        if any(weight is parameter for parameter in group["params"]):
            return group
    raise ValueError(
        f"group lasso shrinks '{counted}' by its learning rate, but no group of the optimizer has "
        "it; build it from gated.parameter_groups(lr)"
    )


def shrink(group: Group, tensors: dict[str, Tensor], by: Tensor) -> None:
    """Apply the proximal operator of ``sum_g by_g ||theta_g||``, in place."""
    pieces = members(group, tensors)
    squares = [per_unit(tensors[p.tensor] ** 2, p, group.units) for p in pieces]
    norm = sum(squares[1:], squares[0]).sqrt()
    factor = torch.where(norm > by, 1 - by / norm, 0.0)
    for piece in pieces:
        _scale(tensors[piece.tensor], piece, factor)


def members(group: Group, tensors: dict[str, Tensor]) -> list[Slice]:
    """The slices of a unit: what it counts, and the biases of the layers that make it."""
    counted = {piece.tensor for piece in group.counts}
    makers = {p.tensor.rpartition(".")[0] for p in group.makes if p.tensor in counted}
    biases = [
        piece
        for piece in group.makes
        if tensors[piece.tensor].dim() == 1
        and piece.tensor.endswith("bias")
        and piece.tensor.rpartition(".")[0] in makers
    ]
    return [*group.counts, *biases]


def _scale(tensor: Tensor, piece: Slice, factor: Tensor) -> None:
    """Multiply every unit's slice by its factor, in place."""
    if piece.dim is None:
        tensor.mul_(factor.view_as(tensor))
        return
    shape = [1] * tensor.dim()
    shape[piece.dim] = -1
    if piece.index is None:
        tensor.mul_(factor.repeat_interleave(piece.block).to(tensor.dtype).view(shape))
        return
    along = torch.ones(tensor.shape[piece.dim], dtype=tensor.dtype, device=tensor.device)
    for unit, positions in enumerate(piece.index):
        along[list(positions)] = factor[unit].to(tensor.dtype)
    tensor.mul_(along.view(shape))
