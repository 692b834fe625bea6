"""Compaction: the transform of ``gating/slicing.py`` with z-bar (Eq. 14), made permanent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from l0arm.compaction.optimizer import Transfer
from l0arm.equality.certificate import Certificate, certify, passed
from l0arm.gating import Gated
from l0arm.gating.cutting import cut_copy, final_draw, select_inputs


class Certified(NamedTuple):
    """A small network and what shows that it computes the same."""

    model: nn.Module
    certificate: Certificate


def compact(
    gated: Gated,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    round_to: int | None = None,
    example_inputs: Sequence[Any] | Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    certify: bool = True,
) -> nn.Module:
    """A plain, smaller ``nn.Module`` that computes what ``gated.eval()`` computes.

    z-bar is folded into the weights that read a unit; structure that no longer reaches the
    output is followed both ways. With ``optimizer``, it afterwards holds the small network's
    parameters with its state cut to match, and no longer holds phi: its group goes, or stays
    empty where a learning rate scheduler counts groups. ``round_to=8`` leaves widths
    that are multiples of 8, by re-opening the most probable gates.

    Where example inputs are known, given here or to ``sparsify``, both networks are compared first
    (see ``certified``, which also returns the comparison) unless ``certify`` is False; if they
    differ, CertificateError names the group and everything stays as it was.
    """
    given = example_inputs is not None or example_kwargs is not None
    if certify and (given or gated.example is not None):
        return certified(
            gated, example_inputs, example_kwargs, optimizer=optimizer, round_to=round_to
        ).model
    return _compacted(gated, optimizer, round_to)


def certified(
    gated: Gated,
    example_inputs: Sequence[Any] | Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    outputs: Sequence[str | int] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    round_to: int | None = None,
) -> Certified:
    """The small network with its certificate, or CertificateError and everything as it was.

    ``outputs`` names those that count, by key or number; left out, those of the plan, else all.

    >>> import l0arm
    >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 5, 3)), lam=0.0)
    >>> small, certificate = certified(gated, torch.rand(4, 6))
    >>> certificate.passed, certificate.dtype
    (True, torch.float64)
    """
    outputs = gated.outputs if outputs is None else outputs
    certificate = passed(
        certify(gated, example_inputs, example_kwargs, outputs=outputs, round_to=round_to)
    )
    return Certified(_compacted(gated, optimizer, round_to), certificate)


def _compacted(
    gated: Gated, optimizer: torch.optim.Optimizer | None, round_to: int | None
) -> nn.Module:
    draw = final_draw(gated, round_to)
    gated.warn_of_empty(draw)
    transfer = None if optimizer is None else Transfer(optimizer, gated, draw)
    small = cut_copy(gated, draw)
    if transfer is not None:
        transfer(small, None)
    return select_inputs(small, gated.layout, draw)
