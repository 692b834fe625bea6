"""Several draws of all gates in one step, each the baseline of the others."""

from __future__ import annotations

import torch
from torch import Tensor

from l0arm.contracts import Objective
from l0arm.estimators._surrogate import antithetic_loss, loss_of


def losses_of(f: Objective, draws: Tensor) -> tuple[Tensor, Tensor]:
    """f at the first draw with its graph, and the losses at all draws (rows) as numbers.

    A draw that equals the first is not evaluated again.
    """
    first, *others = draws.unbind(0)
    value = f(first)  # keeps the graph and runs first: it also trains the weights
    losses = [loss_of(value), *(antithetic_loss(f, first, z, value) for z in others)]
    return value, torch.stack([loss.reshape(()) for loss in losses])


def covariance(losses: Tensor, draws: Tensor, pi: Tensor) -> Tensor:
    """``1/(n-1) sum_i (f_i - mean f)(z_i - pi)``: each draw has the others' mean as its baseline.

    For independent draws its expectation is dE[f]/dlogit(pi).
    """
    centred = (losses - losses.mean()).to(pi.dtype)
    return centred @ (draws - pi) / (len(losses) - 1)


def checked_samples(samples: int) -> int:
    """``samples`` itself, if each can have another one as its baseline."""
    if not isinstance(samples, int) or samples < 2:
        raise ValueError(
            f"samples must be an integer >= 2, got {samples!r}; 2 costs what ARM does, and "
            "'reinforce' or 'ar' need one draw only"
        )
    return samples
