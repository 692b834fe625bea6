"""Does dropping closed units equal zeroing them? Asked of the model itself, group by group."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from l0arm.equality.apart import apart
from l0arm.equality.example import Example
from l0arm.equality.modes import in_eval
from l0arm.equality.outputs import chosen

if TYPE_CHECKING:
    from l0arm.gating.gated import Gated


def check(gated: Gated, *args: Any, **kwargs: Any) -> float:
    """The largest difference between sliced and masked outputs, relative to the outputs' size.

    Each group is tried alone: one unit closed, every other one, all but the first. Raises if they
    differ, or if the model returns nothing that can be compared. (In half precision differences
    below a few percent cannot be told from rounding.)
    """
    execution, worst = gated.execution, 0.0
    try:
        with in_eval(gated):
            for number, group in enumerate(gated.groups):
                for z in _masks(gated, number):
                    difference, allowed = _difference(gated, z, args, kwargs)
                    if not difference <= allowed:
                        raise ValueError(_message(group.name, difference))
                    worst = max(worst, difference)
    finally:
        gated.execution = execution
    return worst


def _masks(gated: Gated, number: int) -> Iterator[Tensor]:
    """One unit closed, every other one, all but the first; a group of one unit stays open."""
    span = gated.layout.span(number)
    for step in (gated.groups[number].units, 2, 1):
        z = gated.phi.new_ones(gated.layout.gates)
        z[span.start + 1 : span.stop : step] = 0.0
        yield z


def _difference(
    gated: Gated, z: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[float, float]:
    found = []
    for execution in ("sliced", "masked"):
        gated.execution = execution
        call = Example(args, kwargs).each(torch.clone)  # a forward may write into its input
        with torch.no_grad(), gated.drawn(z, writes=False):
            found.append(_numbers(gated(*call.args, **call.kwargs), gated.outputs))
    sliced, masked = found
    if any(bool(y.isnan().any()) or not bool(y.isfinite().any()) for y in masked.values()):
        raise ValueError("the outputs are not finite and cannot be compared; check the input")
    allowed = max(_allowed(y) for y in masked.values())
    if sliced.keys() != masked.keys():
        return math.inf, allowed
    return max(apart(sliced[name], y) for name, y in masked.items()), allowed


def _numbers(output: Any, names: tuple[str, ...]) -> dict[str, Tensor]:
    """The tensors of an output that can tell a difference."""
    found = {
        name: tensor
        for name, tensor in chosen(output, names).items()
        if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex())
    }
    if not found:
        raise ValueError(
            f"the model returns {type(output).__name__}, with no number that could be compared; "
            "let it return floating point tensors, also within tuples, lists, mappings or "
            "dataclasses"
        )
    return found


def _allowed(masked: Tensor) -> float:
    return float(min(0.05, 1e3 * torch.finfo(masked.dtype).eps))  # 1e-4 in float32


def _message(name: str, difference: float) -> str:
    return (
        f"dropping closed units of group '{name}' changes the output by {difference:.2g} of its "
        "size, where zeroing them does not: something between its makes and its reads mixes units "
        "(LayerNorm, GroupNorm, softmax, a mean or norm over units), a reader is missing from "
        "reads, or Slice.block or .index does not fit the order in which units are flattened"
    )
