"""``gated.check``: whether dropping closed units equals zeroing them, group by group."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from l0arm.equality.difference import relative_difference, selected_outputs
from l0arm.equality.example import Example, in_eval
from l0arm.equality.inputs import KINDS, mask_with_closed

if TYPE_CHECKING:
    from l0arm.gating.gated import Gated


def check(gated: Gated, *args: Any, **kwargs: Any) -> float:
    """The largest difference between sliced and masked outputs, relative to max|y|.

    Each group is tested alone, with one unit closed, half of them, and all but one. Raises if the
    outputs differ, or if there is nothing to compare. (In half precision a difference below a few
    percent cannot be told from rounding.)
    """
    execution, worst = gated.execution, 0.0
    example = Example(args, kwargs)
    try:
        with in_eval(gated):
            for number, group in enumerate(gated.groups):
                # A group of one unit stays open: without it, a stand-in would be compared.
                for closed in KINDS if group.units > 1 else KINDS[-1:]:
                    z = mask_with_closed(gated.layout, closed, gated.phi.device, number)
                    difference, tolerance = _compared(gated, z, example)
                    if not difference <= tolerance:
                        raise ValueError(_message(group.name, difference))
                    worst = max(worst, difference)
    finally:
        gated.execution = execution
    return worst


def _compared(gated: Gated, z: Tensor, example: Example) -> tuple[float, float]:
    """The difference between sliced and masked execution under z, and its tolerance."""
    found = []
    for execution in ("sliced", "masked"):
        gated.execution = execution
        call = example.map(torch.clone)  # a forward may write into its input
        with torch.no_grad(), gated.drawn(z, writes=False):
            found.append(_floats(gated(*call.args, **call.kwargs), gated.outputs))
    sliced, masked = found
    if any(bool(y.isnan().any()) or not bool(y.isfinite().any()) for y in masked.values()):
        raise ValueError("the outputs are not finite and cannot be compared; check the input")
    tolerance = max(min(0.05, 1e3 * torch.finfo(y.dtype).eps) for y in masked.values())
    if sliced.keys() != masked.keys():
        return math.inf, tolerance
    return max(relative_difference(sliced[name], y) for name, y in masked.items()), tolerance


def _floats(output: Any, names: tuple[str, ...]) -> dict[str, Tensor]:
    """The floating point tensors of an output; raises if there are none."""
    found = {
        name: tensor
        for name, tensor in selected_outputs(output, names).items()
        if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex())
    }
    if not found:
        raise ValueError(
            f"the model returns {type(output).__name__}, with no number that could be compared; "
            "let it return floating point tensors, also within tuples, lists, mappings or "
            "dataclasses"
        )
    return found


def _message(name: str, difference: float) -> str:
    return (
        f"dropping closed units of group '{name}' changes the output by {difference:.2g} of its "
        "size, where zeroing them does not: something between its makes and its reads mixes units "
        "(LayerNorm, GroupNorm, softmax, a mean or norm over units), a reader is missing from "
        "reads, or Slice.block or .index does not fit the order in which units are flattened"
    )
