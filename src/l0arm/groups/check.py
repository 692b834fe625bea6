"""Does dropping closed units equal zeroing them? Asked of the model itself, group by group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from l0arm.groups.modes import in_eval

if TYPE_CHECKING:
    from l0arm.groups.gated import Gated


def check(gated: Gated, *args: Any, **kwargs: Any) -> float:
    """The largest difference between sliced and masked outputs, relative to the outputs' size.

    Each group is tried alone: one unit closed, every other one, all but the first. Raises if they
    differ. (In half precision differences below a few percent cannot be told from rounding.)
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
    outputs = []
    for execution in ("sliced", "masked"):
        gated.execution = execution
        with torch.no_grad(), gated.drawn(z, writes=False):
            outputs.append(list(_tensors(gated(*args, **kwargs))))
    worst = allowed = 0.0
    for sliced, masked in zip(*outputs, strict=True):
        if not bool(masked.isfinite().all()):
            raise ValueError("the outputs are not finite and cannot be compared; check the input")
        scale = max(float(masked.abs().max()), torch.finfo(masked.dtype).tiny)
        worst = max(worst, float((sliced - masked).abs().max()) / scale)
        allowed = max(allowed, min(0.05, 1e3 * torch.finfo(masked.dtype).eps))  # 1e-4 in float32
    return worst, allowed


def _tensors(output: Any) -> Iterator[Tensor]:
    """Floating point tensors in an output, in nested tuples, lists and mappings."""
    if isinstance(output, Tensor):
        if output.is_floating_point() and output.numel():
            yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from _tensors(value)


def _message(name: str, difference: float) -> str:
    return (
        f"dropping closed units of group '{name}' changes the output by {difference:.2g} of its "
        "size, where zeroing them does not: something between its makes and its reads mixes units "
        "(LayerNorm, GroupNorm, softmax, a mean or norm over units), a reader is missing from "
        "reads, or Slice.block or .index does not fit the order in which units are flattened"
    )
