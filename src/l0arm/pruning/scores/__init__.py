"""Scores: how much each unit of a trained network seems to matter, before anything is learned.

They give phi a start that knows the network (``start_from``). A score is a function of the gated
network and a few losses; it returns one non-negative number per gate. ``SCORES`` has them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from l0arm.gating import Gated
from l0arm.pruning.scores.activation import activation
from l0arm.pruning.scores.batch_norm_scale import batch_norm_scale
from l0arm.pruning.scores.first_order import first_order
from l0arm.pruning.scores.fisher import fisher
from l0arm.pruning.scores.magnitude import magnitude

Closure = Callable[[], Tensor]
Score = Callable[[Gated, Sequence[Closure]], Tensor]

SCORES: dict[str, Score] = {
    "activation": activation,
    "batch-norm-scale": batch_norm_scale,
    "first-order": first_order,
    "fisher": fisher,
    "magnitude": magnitude,
}

__all__ = [
    "SCORES",
    "Score",
    "activation",
    "batch_norm_scale",
    "first_order",
    "fisher",
    "magnitude",
    "start_from",
]


def start_from(gated: Gated, scores: Tensor, *, lowest: float = 0.8, highest: float = 0.99) -> None:
    """Start the gates from scores: the rank of a unit becomes its probability of being open.

    Args:
        gated: The gated network. Its phi is written.
        scores: One number per gate, larger for units that matter more.
        lowest: P(open) of the unit with the lowest score.
        highest: P(open) of the unit with the highest score.

    Raises:
        ValueError: If there is not one finite score per gate, or the bounds are not increasing
            probabilities.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((3, 2, 2)), lam=0.0)
        >>> start_from(gated, torch.tensor([0.1, 0.5, 0.2, 0.9, 0.3]))
        >>> gated.gates.probs.argsort().tolist()
        [0, 2, 4, 1, 3]
    """
    if scores.shape != (gated.layout.gates,) or not bool(scores.isfinite().all()):
        raise ValueError(
            f"scores must be {gated.layout.gates} finite numbers, one per gate; got "
            f"{int(scores.isfinite().sum())} finite ones of shape {tuple(scores.shape)}"
        )
    if not 0.0 < lowest < highest < 1.0:
        raise ValueError(
            f"lowest and highest are probabilities, 0 < lowest < highest < 1; got {lowest!r} and "
            f"{highest!r}"
        )
    # Equal scores get equal ranks: the mean position of each value.
    _, place, counts = torch.unique(scores.double(), return_inverse=True, return_counts=True)
    upto = counts.cumsum(0)
    middle = upto - (counts + 1) / 2
    share = middle[place] / max(1, len(scores) - 1)
    mean = (lowest + (highest - lowest) * share).to(gated.phi)
    with torch.no_grad():
        phi = gated.method.gate.initial(mean.cpu()).to(gated.phi.device)
        if phi.dim() == 1:  # take the noise of the start out of the order
            order = mean.cpu().argsort(stable=True)
            phi[order] = phi.sort().values
            phi = _equal_where(phi, place)
        gated.phi.copy_(phi)


def _equal_where(phi: Tensor, place: Tensor) -> Tensor:
    """phi with the mean of each set of equal scores."""
    sums = torch.zeros(int(place.max()) + 1, dtype=phi.dtype, device=phi.device)
    counts = torch.zeros_like(sums).index_add(0, place.to(phi.device), torch.ones_like(phi))
    return (sums.index_add(0, place.to(phi.device), phi) / counts)[place.to(phi.device)]
