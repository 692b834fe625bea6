"""Gates in the state of each row: probabilities, and the phi that gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from l0arm import Gated, ScaledSigmoid

CLOSED, OPEN = 0.001, 0.999

State = Callable[[Gated], Tensor]  # the open probability of every gate


def put(gated: Gated, state: State) -> None:
    """Write phi; training with ``gate_lr=0`` leaves it there."""
    gated.phi.data.copy_(ScaledSigmoid().inverse(state(gated)))


def uniform(p: float) -> State:
    """Every gate open with probability p."""
    return lambda gated: torch.full_like(gated.phi.data, min(max(p, CLOSED), OPEN))


def initial(gated: Gated) -> Tensor:
    """Where training starts."""
    return torch.cat([torch.full((g.units,), g.initial) for g in gated.groups])


def converged(*widths: int) -> State:
    """So many units of every group open for good, drawn once; the others closed."""

    def state(gated: Gated) -> Tensor:
        units = [group.units for group in gated.groups]
        return _polarised(units, [_draw(*pair) for pair in zip(units, widths, strict=True)])

    return state


def half(gated: Gated) -> Tensor:
    """Half of the units of every group open for good: what a compact network needs."""
    return converged(*(group.units // 2 for group in gated.groups))(gated)


def lenet5_converged(gated: Gated) -> Tensor:
    """6-10-39-11; the 39 inputs of fc1 read the 10 open filters, 3 or 4 of each one's 16 outputs.

    A network trained to this size looks so: an input whose filter is closed brings nothing.
    """
    filters = _draw(50, 10)
    outputs = [16 * f + position for position in _draw(16, 4) for f in filters][:39]
    return _polarised([20, 50, 800, 500], [_draw(20, 6), filters, outputs, _draw(500, 11)])


def _draw(units: int, number: int) -> list[int]:
    """The same units in every run."""
    order = torch.randperm(units, generator=torch.Generator().manual_seed(units))
    return sorted(order[:number].tolist())


def _polarised(units: Sequence[int], opened: Sequence[list[int]]) -> Tensor:
    parts = [torch.full((n,), CLOSED) for n in units]
    for part, members in zip(parts, opened, strict=True):
        part[members] = OPEN
    return torch.cat(parts)
