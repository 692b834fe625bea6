"""Norms over units that gates close: they go on dividing by the full number of units.

A closed unit is a zero, so what it adds to the sums of a norm is known. Of n units k are left:

- RMSNorm: sqrt(sum(x^2) / n + eps) is sqrt(k/n) times sqrt(sum(x^2) / k + eps n/k). So it is a
  plain RMSNorm over k units with its weight times sqrt(n/k) and its epsilon times n/k.
- LayerNorm: mean = sum(x) / n, variance = (sum((x - mean)^2) + (n - k) mean^2) / n. A plain one
  cannot do that, so it is replaced.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm.gating.group import Group, Norm
from l0arm.precision import at_least_float32


class FullWidthLayerNorm(nn.LayerNorm):
    """A LayerNorm over the units that are left, as if those that were removed were zeros.

    It has the parameters, attributes and hooks of the one it replaces.

    Args:
        original: A plain LayerNorm over one dimension.

    Example:
        >>> original = nn.LayerNorm(6).double()
        >>> x = torch.rand(3, 6, dtype=torch.float64)
        >>> x[:, 4:] = 0.0
        >>> small = FullWidthLayerNorm(original)
        >>> small.weight, small.bias = (nn.Parameter(p[:4]) for p in (small.weight, small.bias))
        >>> bool(torch.allclose(small(x[:, :4]), original(x)[:, :4]))
        True
    """

    def __init__(self, original: nn.LayerNorm) -> None:
        vars(self).update(vars(original))
        homes = ("_parameters", "_buffers", "_modules")
        vars(self).update({home: dict(vars(original)[home]) for home in homes})
        (self.width,) = original.normalized_shape

    def forward(self, input: Tensor) -> Tensor:
        """Normalise over the last dimension."""
        left = input.shape[-1]
        if left == self.width:
            return F.layer_norm(input, (left,), self.weight, self.bias, self.eps)
        x = at_least_float32(input)
        mean = x.sum(-1, keepdim=True) / self.width
        centred = x - mean
        squares = centred.square().sum(-1, keepdim=True) + (self.width - left) * mean.square()
        y = (centred * torch.rsqrt(squares / self.width + self.eps)).to(input.dtype)
        y = y if self.weight is None else y * self.weight
        return y if self.bias is None else y + self.bias

    def update_shape(self) -> None:
        """Set ``normalized_shape`` to the units that are left."""
        if self.weight is not None:
            self.normalized_shape = tuple(self.weight.shape)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, width={self.width}"


def is_plain(module: nn.Module) -> bool:
    """Whether a LayerNorm over one dimension runs torch's own forward."""
    return (
        isinstance(module, nn.LayerNorm)
        and type(module).forward in (nn.LayerNorm.forward, FullWidthLayerNorm.forward)
        and len(module.normalized_shape) == 1
    )


def exchange_norm(model: nn.Module, name: str) -> None:
    """Replace one LayerNorm by a ``FullWidthLayerNorm``, under all its names.

    ValueError: the module is not a plain LayerNorm over one dimension.
    """
    original = dict(model.named_modules()).get(name)
    if isinstance(original, FullWidthLayerNorm):
        return
    if not isinstance(original, nn.LayerNorm) or not is_plain(original):
        raise ValueError(
            f"'{name}' is {type(original).__name__} and not a plain nn.LayerNorm over one "
            "dimension, so it cannot normalise over fewer units; plan this model anew, or name the "
            "epsilon of an RMSNorm: Norm(module, epsilon='eps')"
        )
    new = FullWidthLayerNorm(original)
    for module in model.modules():
        for key, child in module._modules.items():
            if child is original:
                module._modules[key] = new


def exchange_norms(model: nn.Module, groups: tuple[Group, ...] | list[Group]) -> None:
    """Replace every LayerNorm that normalises over the units of a group."""
    for group in groups:
        for norm in group.norms:
            if norm.epsilon is None:
                exchange_norm(model, norm.module)


def rms_weight(module: nn.Module, norm: Norm) -> Tensor:
    """The only parameter of an RMSNorm."""
    found = list(module.parameters(recurse=False))
    if len(found) != 1 or found[0].dim() != 1:
        raise ValueError(
            f"'{norm.module}' is no RMSNorm: it has {len(found)} parameters of its own, where one "
            "vector was expected; leave out Norm.epsilon for a LayerNorm"
        )
    return found[0]


def grown_weight(weight: Tensor, norm: Norm, size: int) -> Tensor:
    """The weight of an RMSNorm over fewer than ``size`` units, after the cut."""
    if len(weight) == size:
        return weight
    factor = math.sqrt(size / len(weight))
    return factor * weight if not norm.offset else factor * (weight + norm.offset) - norm.offset


def shrunk_weight(weight: Tensor, norm: Norm, size: int) -> Tensor:
    """The inverse of ``grown_weight``."""
    factor = math.sqrt(len(weight) / size)
    return factor * (weight + norm.offset) - norm.offset


def rms_attributes(module: nn.Module, norm: Norm, size: int, left: int) -> dict[str, Any]:
    """The attributes of an RMSNorm over ``left`` of ``size`` units that differ from its own."""
    assert norm.epsilon is not None
    epsilon = getattr(module, norm.epsilon)
    if epsilon is None:  # nn.RMSNorm takes that of the dtype
        epsilon = torch.finfo(rms_weight(module, norm).dtype).eps
    found: dict[str, Any] = {norm.epsilon: epsilon * size / left}
    if isinstance(module, nn.RMSNorm):
        found["normalized_shape"] = (left,)
    return found
