"""Whether an exported network computes what the original does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from l0arm.equality.difference import relative_difference
from l0arm.equality.example import in_eval
from l0arm.export.capture import Inputs, arguments

BATCHES = (1, 7, 64)
Call = Callable[[Inputs], Sequence[Tensor]]


@dataclass(frozen=True)
class Parity:
    """By batch size: the largest difference, as a share of the largest number of its output."""

    differences: Mapping[int, float]
    agreement: float  # rows in which the largest output of all is the same one

    @property
    def largest(self) -> float:
        return max(self.differences.values())  # none is NaN: what is not finite is infinitely far


@dataclass(frozen=True)
class Exported:
    """A file, and how far what it computes is from the network it was made of."""

    path: Path
    bytes: int
    parity: Parity
    quantised: Exported | None = None


def parity(model: nn.Module, call: Call, example_inputs: Inputs) -> Parity:
    """Compare on rows made of the example's, in batches of 1, 7 and 64."""
    random = torch.Generator().manual_seed(0)
    differences, same, rows = {}, 0, 0
    for batch in BATCHES:
        inputs = batch_like(example_inputs, batch, random)
        want, got = outputs(model, inputs), call(inputs)
        differences[batch] = _difference(want, got)
        right, seen = _agreeing(want, got)
        same, rows = same + right, rows + seen
    return Parity(differences, same / rows if rows else 1.0)


def outputs(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """All tensors that a call gives, in eval mode."""
    with in_eval(model):
        return tensors_of(model, inputs)


def tensors_of(call: Callable[..., Any], inputs: Inputs) -> list[Tensor]:
    """All tensors in what a call gives, in order."""
    args, kwargs = tree_map_only(Tensor, torch.clone, arguments(inputs))  # it may write into them
    with torch.no_grad():
        return [leaf for leaf in tree_leaves(call(*args, **kwargs)) if isinstance(leaf, Tensor)]


def batch_like(example: Inputs, batch: int, random: torch.Generator) -> Inputs:
    """Rows of the example, those of floats each scaled by a factor of its own."""

    def rows(tensor: Tensor) -> Tensor:
        taken = tensor[torch.arange(batch) % len(tensor)]
        if not taken.is_floating_point():
            return taken
        factors = 0.5 + torch.rand(batch, *[1] * (taken.dim() - 1), generator=random)
        return taken * factors.to(taken)

    args, kwargs = arguments(example)
    return {name: rows(t) for name, t in kwargs.items()} if kwargs else [rows(t) for t in args]


def _agreeing(want: Sequence[Tensor], got: Sequence[Tensor]) -> tuple[int, int]:
    """Of the rows of the first output that has several numbers in each: those with one largest."""
    for one, other in zip(want, got, strict=False):
        if one.dim() >= 2 and one.shape == other.shape and one.flatten(1).shape[1] > 1:
            largest = [t.flatten(1).to(torch.float64).argmax(1) for t in (one, other)]
            return int((largest[0] == largest[1]).sum()), len(one)
    return 0, 0


def _difference(want: Sequence[Tensor], got: Sequence[Tensor]) -> float:
    if len(want) != len(got):
        return math.inf
    return max((relative_difference(b, a) for a, b in zip(want, got, strict=True)), default=0.0)
