"""A scratch model made lively: what starts at zero, or at one, would hide differences."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from l0arm.equality.example import Example

SHAKEN = 1.2  # with what is there, signals of a deep network neither vanish nor grow much


def shake(model: nn.Module, random: torch.Generator) -> None:
    """Move every parameter and running statistic away from the zeros and ones it may start at."""
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if torch.is_floating_point(tensor) and tensor.numel():
                noise = torch.randn(tensor.shape, generator=random).to(tensor)
                if isinstance(tensor, nn.Parameter):
                    _shake_parameter(tensor, noise)
                elif name.endswith("running_mean"):
                    tensor.add_(noise, alpha=0.1)
                elif name.endswith("running_var"):
                    tensor.mul_(1 + 0.3 * noise.tanh())


def _shake_parameter(tensor: nn.Parameter, noise: Tensor) -> None:
    """A little upwards, so that rectified units live."""
    if tensor.dim() > 1:
        fan_in = max(1, tensor[0].numel())
        tensor.add_(noise, alpha=SHAKEN * fan_in**-0.5).add_(0.5 / fan_in)
    else:
        tensor.add_(noise.abs(), alpha=0.5)


def lively(example: Example, random: torch.Generator) -> Example:
    """An input of zeros or ones would hide differences: constant floats get noise."""

    def changed(value: Tensor) -> Tensor:
        constant = not bool((value != value.flatten()[:1]).any())
        if not torch.is_floating_point(value) or value.numel() < 2 or not constant:
            return value
        return value + torch.randn(value.shape, generator=random).to(value)

    return example.each(changed)
