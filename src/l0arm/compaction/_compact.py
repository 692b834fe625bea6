"""Compaction: the cut of training with z-bar (Eq. 14), made permanent and certified."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from l0arm.compaction.optimizer import Transfer
from l0arm.compaction.provenance import (
    Origin,
    Provenance,
    attributes_of,
    provenance_of,
    remember,
    set_provenance,
)
from l0arm.costs.budget import BudgetWarning
from l0arm.costs.fitting import as_cut
from l0arm.equality.certificate import Certificate, issue_certificate
from l0arm.equality.example import Example
from l0arm.gating import Gated
from l0arm.gating.cutting import cut_copy, permanent_draw, select_inputs


def compact(
    gated: Gated,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    round_to: int | None = None,
    example_inputs: Sequence[Any] | Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    outputs: Sequence[str | int] | None = None,
    certify: bool = True,
) -> nn.Module:
    """Return a plain, smaller ``nn.Module`` that computes what ``gated.eval()`` computes.

    z-bar is folded into the weights that read a unit. Units that no longer reach the output, or
    are no longer reached, are removed as well. ``gated`` is left as it is.

    Where example inputs are known, given here or to ``sparsify``, both networks are compared
    first, in float64 where the model runs so. ``l0arm.certificate`` returns this comparison.

    Args:
        gated: The gated model.
        optimizer: The optimizer that trains ``gated``. Afterwards it holds the parameters of the
            small network, with its state cut to match. phi is no longer in it. The group of phi
            is removed, or stays empty where a learning rate scheduler counts groups.
        round_to: Leave widths that are multiples of this, by re-opening the most probable gates.
        example_inputs: Inputs to compare on: a tensor, or a sequence of arguments.
        example_kwargs: Keyword arguments to compare on.
        outputs: The outputs to compare, by key or number. If left out, those of the plan, or all.
        certify: Whether to compare the networks where example inputs are known.

    Returns:
        The small network, in the modes of the gated one.

    Raises:
        CertificateError: The networks differ. The message names the group, and everything is left
            as it was.
        ValueError: ``outputs`` is given, but there are no inputs to compare on.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 5, 3)), lam=0.0, initial=0.9)
        >>> gated.phi.data[:] = 9.0
        >>> gated.phi.data[6:8] = -9.0  # two of the five hidden units
        >>> small = compact(gated, example_inputs=torch.rand(4, 6))
        >>> [tuple(p.shape) for p in small.parameters()]
        [(3, 6), (3,), (3, 3), (3,)]
    """
    example = None
    if certify:
        example = example_of(gated, example_inputs, example_kwargs, outputs)
        if example is None and outputs is not None:
            raise ValueError(
                "a certificate needs inputs to compare on: pass example_inputs=(x,), here or to "
                "sparsify"
            )
    z_bar = gated.deterministic(round_to)
    _warn_if_over_budget(gated, z_bar)
    evidence = None if example is None else issue_certificate(gated, z_bar, example)
    small = cut_for_good(gated, z_bar, evidence, optimizer)
    remember(gated, small)
    return small


def _warn_if_over_budget(gated: Gated, z_bar: Tensor) -> None:
    """Name a network that costs more than its budget."""
    budget = gated.budget
    left = None if budget is None else as_cut(gated, z_bar)
    if budget is None or left is None or budget.fits(left):
        return
    over = ", ".join(
        f"{what} {100 * share:.1f} % (budget {100 * limit:.1f} %)"
        for what, (share, _, limit) in budget.shares(left).items()
        if share > limit
    )
    warnings.warn(
        f"the compact network is over its budget: {over}; call l0arm.fit_threshold(gated) or "
        "l0arm.pruning.decide(gated) first, with the same round_to: sparsify(..., round_to=...)",
        BudgetWarning,
        stacklevel=3,
    )


def cut_for_good(
    gated: Gated,
    z_bar: Tensor,
    evidence: Certificate | None,
    optimizer: torch.optim.Optimizer | None = None,
) -> nn.Module:
    """The small network for given gates, with its provenance."""
    draw = permanent_draw(gated, z_bar)
    gated.warn_of_empty(draw)
    transfer = None if optimizer is None else Transfer(optimizer, gated, draw)
    small = cut_copy(gated, draw)
    if transfer is not None:
        transfer(dict(small.named_parameters()), None)
    once = provenance_of(gated.model) is None
    origin = Origin.of(gated, draw, attributes_of(small, gated.groups)) if once else None
    return set_provenance(select_inputs(small, gated.layout, draw), Provenance(origin, evidence))


def example_of(
    gated: Gated,
    inputs: Sequence[Any] | Any = None,
    kwargs: Mapping[str, Any] | None = None,
    outputs: Sequence[str | int] | None = None,
) -> Example | None:
    """The example to compare on: what is given here, else what ``sparsify`` was given."""
    given = Example.of(inputs, kwargs, gated.outputs if outputs is None else outputs)
    if given is None and gated.example is not None and outputs is not None:
        return replace(gated.example, outputs=tuple(str(name) for name in outputs))
    return given or gated.example
