"""l0-best: DisARM under a price per parameter; then gates are decided, and the weights averaged.

Evidence for each of its parts: docs/l0-best.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from l0arm.contracts import Enter, Extra, MakeExtras, Method, Stage, Validate
from l0arm.costs.expectation import Cost, parameter_cost
from l0arm.estimators import Estimator
from l0arm.estimators._named import estimator_for
from l0arm.gates import ScaledSigmoid
from l0arm.gating import Gated
from l0arm.gating.mask import close_dead_units
from l0arm.methods._l0 import GateLike, l0
from l0arm.methods.stages import check_shares, half_cosine, never, warmed_up
from l0arm.methods.weight_average import (
    add_to_average,
    begin_average,
    take_average,
    weight_average,
)
from l0arm.penalties.parameters import Parameters, parameter_count

Price = Literal["left", "fixed"]

SURE = (100.0, *(2.0**n for n in range(9)))  # |phi| of a decided gate: sigmoid(-7 * 100) is 0
LAST = 0.01  # of the settling is for its mean: one epoch, unless there are hundreds


def l0_best(
    lam: float,
    *,
    gate: GateLike = ScaledSigmoid(),
    estimator: Estimator | str = "disarm",
    price: Price = "left",
    warm_up: float = 0.9,
    settle: float = 0.5,
    settle_lr: float = 3.0,
    average: bool = True,
    at_most: float = 1.0,
    **options: Any,
) -> Method:
    """Minimise data loss + lam E[parameters left], and end with gates that are open or closed.

    ``lam`` is the price of one parameter in the mean loss, the same in all layers. It grows from 0
    over the first ``warm_up`` of the learning, slowly: a price that comes at once closes the layer
    with the most weights per unit before its gates know what they are worth. For the last
    ``settle`` of the epochs the gates are fixed, as the threshold decides: while they are
    undecided, the thresholded network is not the one that was trained. The weights are trained on
    with ``settle_lr`` times the optimizer's rate, and end as the mean of where they were. Where a
    size must be kept to, ``at_most`` is the share of the parameters that may be left: the least
    certain units close with the gates that are fixed.

    Each part can be taken away: ``estimator="arm"``, ``price="fixed"`` (Eq. 17: a unit costs the
    weights it has in the dense network), ``warm_up=0``, ``settle=0``, ``average=False`` (the rate
    falls to zero instead). ``options`` are those of an estimator given by its name.
    """
    check_shares(warm_up=warm_up, settle=settle)
    _check_size(at_most, settle)
    learn = Stage("learn", 1 - settle, penalty=warmed_up(warm_up))
    estimator = estimator_for(l0_best, estimator, options)
    method = _priced(l0(lam, estimator=estimator, gate=gate, name="l0-best"), lam, price)
    if at_most < 1.0:  # a share of the whole network, so one that shrinks meanwhile is refused
        method = replace(method, extras=parameter_count)
    method = replace(method, stages=(learn,))
    if not settle:
        return method
    method = replace(method, check=Decidable(at_most))
    decide = Decide(at_most)
    fixed = Stage("settle", settle, enter=decide, lr=settle_lr, gate_lr=0.0, penalty=never)
    if not average:
        return replace(method, stages=(learn, replace(fixed, anneal=half_cosine)))
    return _averaged(method, fixed, decide)


def _check_size(at_most: float, settle: float) -> None:
    if not (isinstance(at_most, int | float) and 0.0 < at_most <= 1.0):
        raise ValueError(f"at_most is a share of the parameters, above 0 up to 1; got {at_most!r}")
    if at_most < 1.0 and not settle:
        raise ValueError(
            f"at_most={at_most!r} is kept to where the gates are fixed, and with settle=0 they "
            "never are; give settle a share of the epochs, or leave at_most out"
        )


def _priced(method: Method, lam: float, price: Price) -> Method:
    if price == "left":
        return replace(method, penalties=(Parameters(lam),), extras=parameter_count)
    if price != "fixed":
        raise ValueError(f"price must be 'left' or 'fixed'; got {price!r}")
    return method


def _averaged(method: Method, settle: Stage, decide: Enter) -> Method:
    """The method with a last epoch for the mean of the weights over the stage ``settle``.

    That epoch changes no weight: batch normalisation sees the images once more, as its statistics
    are those of the steps before, not of their mean.
    """
    most = replace(settle, share=(1 - LAST) * settle.share, enter=DecideAndAverage(decide))
    end = replace(settle, name="end", share=LAST * settle.share, enter=take_average, lr=0.0)
    return replace(
        method,
        stages=(*method.stages, most, end),
        extras=weight_average if method.extras is None else Both(method.extras, weight_average),
        after_step=add_to_average,
    )


@dataclass(frozen=True)
class Both:
    """What two parts of a method bring along."""

    one: MakeExtras
    other: MakeExtras

    def __call__(self, gated: Gated) -> Mapping[str, Extra]:
        return {**self.one(gated), **self.other(gated)}


@dataclass(frozen=True)
class Decidable:
    """Refuses, before the training, what could not be decided in the middle of it."""

    at_most: float

    def __call__(self, gated: Gated) -> None:
        surely(gated)
        check_reachable(gated, self.at_most)


@dataclass(frozen=True)
class Decide:
    """Every gate is open or closed for sure, as the threshold says (Eq. 14).

    Units without a path to the output close, too: nothing has told their gates what they are for.
    """

    at_most: float = 1.0

    def __call__(self, gated: Gated, validate: Validate | None) -> None:
        sure = surely(gated)
        with torch.no_grad():
            alive = close_dead_units(gated.layout, gated.deterministic())
            alive = trimmed(gated, alive, self.at_most)
            gated.phi.copy_(torch.where(alive > 0, sure, -sure))


def surely(gated: Gated) -> float:
    """A |phi| at which g is exactly 0 and 1, with slopes that are numbers.

    >>> from l0arm._sparsify import sparsify
    >>> from l0arm.models import MLP
    >>> surely(sparsify(MLP((3, 2)), method=l0_best(0.0)))
    100.0
    """
    for sure in SURE:
        with torch.inference_mode(False), torch.enable_grad():  # wherever it is asked
            phi = torch.tensor([-sure, sure], dtype=gated.phi.dtype, device=gated.phi.device)
            phi.requires_grad_()
            probs = gated.method.gate(phi).probs
            (slopes,) = torch.autograd.grad(probs.sum(), phi)
        if probs.tolist() == [0.0, 1.0] and bool(slopes.isfinite().all()):
            return sure
    raise ValueError(
        "l0-best ends with gates that are open or closed for sure, but this gate function is never "
        "exactly 0 and 1 (tried: phi up to 256); clamp it, e.g. HardSigmoid(), or give settle=0"
    )


@dataclass(frozen=True)
class DecideAndAverage:
    """The gates are fixed; from here on every step of the weights counts in their mean."""

    decide: Enter

    def __call__(self, gated: Gated, validate: Validate | None) -> None:
        self.decide(gated, validate)
        begin_average(gated, validate)


def check_reachable(gated: Gated, at_most: float) -> None:
    """Refuse a size that the groups cannot be trimmed to."""
    cost = parameter_cost(gated)
    least = cost.least() / cost.dense
    if least > at_most:
        raise ValueError(
            f"at_most={at_most:.4g} cannot be reached: with as few units open as each group "
            f"allows, {least:.4g} of the parameters are left; gate more layers, or raise at_most"
        )


def trimmed(gated: Gated, z: Tensor, at_most: float) -> Tensor:
    """z with units closed, from the lowest phi on, until ``at_most`` of the parameters are left.

    A group keeps its floor, and at least one unit, and all units that would save nothing. Units
    that lose their last path to the output close with those that cut it.
    """
    cost = parameter_cost(gated)
    limit, left = at_most * cost.dense, _left(cost, z)
    for unit in torch.argsort(gated.phi.detach()).tolist():
        if left <= limit:
            break
        if z[unit] > 0 and _spare(gated, z, unit):
            without = z.clone()
            without[unit] = 0.0
            without = close_dead_units(gated.layout, without)
            saved = left - _left(cost, without)
            z, left = (without, left - saved) if saved > 0 else (z, left)
    return z


def _left(cost: Cost, z: Tensor) -> float:
    with torch.no_grad():
        return float(cost((z > 0).double()))


def _spare(gated: Gated, z: Tensor, unit: int) -> bool:
    """Whether the unit's group has more open ones than it must keep."""
    number = int(gated.layout.group_of[unit])
    is_open = int((z[gated.layout.span(number)] > 0).sum())
    return is_open > max(1, gated.groups[number].floor)
