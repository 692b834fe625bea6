"""Norms that units can pass: a LayerNorm, or an RMSNorm, that goes on dividing by its full width.

The units of a residual stream are mixed by norms alone. Such a norm can lose units exactly
(``gating/norms.py``), so that the stream can.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from l0arm.gating import Norm
from l0arm.gating.norms import (
    exchange_norm,
    grown_weight,
    is_plain,
    rms_attributes,
    rms_weight,
)
from l0arm.planning.groups import FoundGroup
from l0arm.planning.rules.base import Trace

OFFSETS = (0.0, 1.0)  # what the forward of an RMSNorm may add to its weight (Gemma: 1)
ROUNDING = 1e-4  # an RMSNorm may compute in float32, or in less


def prepared_norms(twin: nn.Module) -> dict[str, Norm]:
    """All norms of a scratch model that can lose units, by name. Its LayerNorms are replaced."""
    found: dict[str, Norm] = {}
    for name, module in list(twin.named_modules()):
        if name and is_plain(module):
            exchange_norm(twin, name)
            found[name] = Norm(name)
        elif not isinstance(module, nn.LayerNorm):
            norm = _rms_norm(name, module)
            if norm is not None:
                found[name] = norm
    return found


def with_norms(trace: Trace, found: Sequence[FoundGroup]) -> list[FoundGroup]:
    """The groups, each with the norms over its units."""
    owner = {root: number for number, entry in enumerate(found) for root in entry.roots}
    norms: list[list[Norm]] = [[] for _ in found]
    for norm, atoms in trace.normalised:
        roots = trace.atoms.free_roots(atoms).tolist()
        for number in {owner[root] for root in roots if root in owner}:
            norms[number].append(norm)
    return [
        replace(entry, group=replace(entry.group, norms=tuple(dict.fromkeys(own))))
        for entry, own in zip(found, norms, strict=True)
    ]


def _rms_norm(name: str, module: nn.Module) -> Norm | None:
    """How a module is an RMSNorm, tested on values; None if it is none."""
    own = list(module.parameters(recurse=False))
    if next(module.children(), None) is not None or len(own) != 1 or own[0].dim() != 1:
        return None
    if len(own[0]) < 2 or not own[0].is_floating_point():
        return None
    numbers = [key for key, value in vars(module).items() if isinstance(value, float) and value > 0]
    if isinstance(module, nn.RMSNorm):
        numbers = ["eps"]
    for epsilon in numbers:
        for offset in OFFSETS:
            norm = Norm(name, epsilon, offset)
            if _loses_units(module, norm):
                return norm
    return None


def _loses_units(module: nn.Module, norm: Norm) -> bool:
    """Whether the module over half of its units equals the one with the other half zero."""
    assert norm.epsilon is not None
    random = torch.Generator().manual_seed(0)
    dense = copy.deepcopy(module)
    weight = rms_weight(dense, norm)
    size, left = len(weight), max(1, len(weight) // 2)
    try:
        with torch.no_grad():
            weight.add_(0.5 * torch.rand(size, generator=random).to(weight))
            epsilon = rms_attributes(dense, norm, size, size)[norm.epsilon]
            x = torch.randn(2, 3, size, generator=random).to(weight)
            x[0] *= epsilon**0.5  # the epsilon must show
            x[..., left:] = 0.0
            small = copy.deepcopy(dense)
            for key in list(small._parameters):
                small._parameters[key] = nn.Parameter(grown_weight(weight[:left], norm, size))
            for attribute, value in rms_attributes(dense, norm, size, left).items():
                setattr(small, attribute, value)
            for attribute, value in vars(dense).items():  # the plan has patches for these
                if type(value) is int and value == size:
                    setattr(small, attribute, left)
            want, got = dense(x)[..., :left], small(x[..., :left])
            return bool(torch.allclose(want, got, rtol=ROUNDING, atol=0.1 * ROUNDING))
    except Exception:  # any module may look like a norm, and raise anything
        return False
