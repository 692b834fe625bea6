"""How much is gone: prune rate and architecture as the paper counts them (Sec. 5.2)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from l0arm.gating import Gated
from l0arm.gating.draw import Draw
from l0arm.gating.layout import TensorCut, named_tensors

Counted = Literal["paper", "realised"]


def prune_rate(gated: Gated, counted: Counted = "paper") -> float:
    """Percentage of weights pruned (biases do not count).

    ``paper``: of the gated layers' weights, with each layer's own gates, as in Tables 2 and 3.
    ``realised``: of all the model's weights, as compaction really removes them.
    """
    if counted not in ("paper", "realised"):
        raise ValueError(f"counted must be 'paper' or 'realised'; got {counted!r}")
    if counted == "paper":
        return pruned_percentage(gated, gated.deterministic())
    before = sum(p.numel() for p in gated.model.parameters() if p.dim() >= 2)
    after = weight_count(gated.compact(certify=False))
    return 100.0 * (1 - after / before)


def pruned_percentage(gated: Gated, z: Tensor) -> float:
    """The paper's prune rate for given gates: of the weights that some group counts."""
    draw = Draw(gated.layout, z)
    tensors = named_tensors(gated.model)
    counting: dict[str, set[int]] = {}
    for number, group in enumerate(gated.groups):
        for piece in group.counts:
            counting.setdefault(piece.tensor, set()).add(number)
    total = sum(tensors[name].numel() for name in counting)
    alive = sum(_alive(tensors[name], name, own, draw) for name, own in counting.items())
    return 100.0 * (1 - alive / total)


def _alive(tensor: Tensor, name: str, own: set[int], draw: Draw) -> int:
    """Weights of a tensor that are open in all dimensions.

    Where several groups cut one dimension, the one that counts the tensor decides alone: the paper
    counts the 800 inputs of LeNet's fc1 by their own gates, whatever the 50 filters do.
    """
    spec = draw.layout.tensors.get(name, TensorCut(name))
    mask = torch.ones(tensor.shape, dtype=torch.bool, device=tensor.device)
    for dim, axis in spec.axes.items():
        reaches = [r for r in axis.reaches if r.group in own] or axis.reaches
        shape = [1] * tensor.dim()
        shape[dim] = -1
        mask &= torch.from_numpy(draw.open_by(reaches)).to(mask.device).view(shape)
    for group in spec.elementwise:
        mask &= (draw.of_group(group) != 0).view_as(mask)
    return int(mask.sum())


def architecture(gated: Gated) -> str:
    """Open units of each group, e.g. "20-16-32-257"."""
    open_gates = gated.deterministic() != 0
    return "-".join(str(int(part.sum())) for part in gated.per_group(open_gates).values())


def expected_l0(gated: Gated) -> float:
    """E||theta||_0 = sum_g |g| g(phi_g), Eq. 17."""
    with torch.no_grad():
        return float((gated.sizes * gated.gates.open_probability).sum())


def weight_count(model: nn.Module) -> int:
    """Weights that are not zero: parameters with two or more dimensions, so no biases or norms."""
    return sum(int(p.count_nonzero()) for p in model.parameters() if p.dim() >= 2)
