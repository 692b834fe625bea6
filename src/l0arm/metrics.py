"""How much is pruned: prune rate and architecture as the paper counts them (Sec. 5.2)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from l0arm.compaction._compact import cut_for_good
from l0arm.gating import Gated
from l0arm.gating.draw import Draw
from l0arm.gating.layout import TensorCut, named_tensors

__all__ = ["architecture", "expected_l0", "prune_rate", "weight_count"]

Counted = Literal["paper", "realised"]


def prune_rate(gated: Gated, counted: Counted = "paper") -> float:
    """Percentage of weights that the deterministic gates prune; biases do not count.

    Args:
        gated: The gated network.
        counted: "paper": of the weights of the gated layers, by the gates of each layer alone, as
            in Tables 2 and 3. "realised": of all weights of the model, as compaction removes them.

    Returns:
        A number from 0 to 100.

    Raises:
        ValueError: ``counted`` is neither "paper" nor "realised".

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 4, 2)), lam=0.0)
        >>> gated.phi.data = torch.tensor([9.0] * 3 + [-9.0] * 3 + [9.0] * 4)  # 3 of 6 inputs
        >>> prune_rate(gated)
        37.5
    """
    if counted not in ("paper", "realised"):
        raise ValueError(f"counted must be 'paper' or 'realised'; got {counted!r}")
    if counted == "paper":
        return pruned_percentage(gated, gated.deterministic())
    before = sum(p.numel() for p in gated.model.parameters() if p.dim() >= 2)
    after = weight_count(cut_for_good(gated, gated.deterministic(), None))
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
    """Open units of each group under the deterministic gates, as in Table 2.

    Args:
        gated: The gated network.

    Returns:
        The numbers joined by hyphens, such as "20-16-32-257".

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 4, 2)), lam=0.0)
        >>> gated.phi.data = torch.tensor([9.0] * 3 + [-9.0] * 3 + [9.0] * 4)
        >>> architecture(gated)
        '3-4'
    """
    open_gates = gated.deterministic() != 0
    return "-".join(str(int(part.sum())) for part in gated.per_group(open_gates).values())


def expected_l0(gated: Gated) -> float:
    """E||theta||_0 = sum_g |g| g(phi_g) at the current phi, Eq. 17.

    Args:
        gated: The gated network.

    Returns:
        The expected number of open weights, where |g| is the number of weights of unit g.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 4, 2)), lam=0.0)
        >>> _ = gated.phi.data.fill_(0.0)  # every gate is open with probability 1/2
        >>> expected_l0(gated)  # of 6 * 4 + 4 * 2 weights
        16.0
    """
    with torch.no_grad():
        return float((gated.sizes * gated.gates.open_probability).sum())


def weight_count(model: nn.Module) -> int:
    """Number of weights that are not zero, without biases and parameters of norms.

    Args:
        model: Any module.

    Returns:
        The number of nonzero entries of all parameters with two or more dimensions.

    Example:
        >>> weight_count(nn.Linear(3, 2))
        6
    """
    return sum(int(p.count_nonzero()) for p in model.parameters() if p.dim() >= 2)
