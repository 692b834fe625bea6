"""Whether closing units shows in the outputs: where nothing shows, equality says nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from l0arm.equality.difference import measured
from l0arm.equality.example import Example
from l0arm.equality.scratch import SEED, Outputs, Scratch
from l0arm.gating.layout import Layout

VISIBLE = 100.0  # times the tolerance


def unseen(
    scratch: Scratch, layout: Layout, cases: Iterable[tuple[Tensor, Example]]
) -> frozenset[int]:
    """The groups (by number) that drop units whose closing no case of gates and input shows."""
    hidden = {number for number, group in enumerate(layout.groups) if group.drops}
    for z, x in cases:
        if not hidden:
            break
        slopes = _slopes(scratch, layout, z, x)
        for number in sorted(hidden):
            effect = slopes[number] or _closing(scratch, layout, number, z, x)
            if effect > VISIBLE * scratch.tolerance:
                hidden.remove(number)
    return frozenset(hidden)


def _slopes(scratch: Scratch, layout: Layout, z: Tensor, x: Example) -> list[float]:
    """|dy/dz| of every group in a random direction of y, relative to max|y|; one backward pass.

    0 where there is no gradient: nothing moves, it moves by jumps, or the model does not allow it.
    """
    gates = z.detach().clone().requires_grad_()
    try:
        outputs = scratch.zeroed(layout, gates, x, graph=True)
        (slope,) = torch.autograd.grad(_projected(outputs), gates)
    except Exception:  # gates of tied weights refuse fractions; a forward may cut the graph
        return [0.0] * len(layout.groups)
    spans = map(layout.span, range(len(layout.groups)))
    effects = [float(slope[span].norm()) for span in spans]
    return [effect if math.isfinite(effect) else 0.0 for effect in effects]


def _projected(outputs: Outputs) -> Tensor:
    """The sum of all outputs with random signs, each relative to its max|y| and its size."""
    random, total = torch.Generator().manual_seed(SEED), torch.zeros(())
    for y in outputs.values():
        values = y[measured(y.detach())]
        if values.numel():
            signs = 2.0 * torch.randint(2, values.shape, generator=random) - 1.0
            scale = values.detach().abs().max() * math.sqrt(values.numel())
            total = total.to(y.device) + ((values * signs.to(values)).sum() / scale).real
    return total


def _closing(scratch: Scratch, layout: Layout, number: int, z: Tensor, x: Example) -> float:
    """How far the outputs move when the group's units that z closes are open."""
    opened = z.clone()
    opened[layout.span(number)] = 1.0
    before, after = (scratch.zeroed(layout, gates, x) for gates in (opened, z))
    return max((_moved(before[name], after[name]) for name in before), default=0.0)


def _moved(before: Tensor, after: Tensor) -> float:
    both = measured(before) & measured(after)
    if not bool(both.any()):
        return 0.0
    return float((after - before)[both].abs().max() / before[both].abs().max())
