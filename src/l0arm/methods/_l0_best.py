"""l0-best: DisARM with a price per parameter, then gates fixed to open or closed, weights averaged.

docs/l0-best.md has the evidence for each of its parts.
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

SATURATING = (100.0, *(2.0**n for n in range(9)))  # |phi| to try: sigmoid(-7 * 100) is 0
END_SHARE = 0.01  # of the settle stage, for its mean: one epoch, unless there are hundreds


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

    The training has up to three stages. In ``learn``, gates and weights are trained under the
    penalty. In ``settle``, the gates are fixed at 0 or 1 by the threshold and only the weights are
    trained: as long as gates are undecided, the thresholded network differs from the one that was
    trained. In ``end``, one epoch, the weights are the mean over ``settle``, and batch
    normalisation collects its statistics for them.

    Each part can be switched off: ``estimator="arm"``, ``price="fixed"``, ``warm_up=0``,
    ``settle=0``, ``average=False``.

    Args:
        lam: The price of one parameter in the mean loss, the same in all layers.
        gate: The gate function g, with pi = g(phi).
        estimator: How phi gets a gradient: an estimator, or a name of ``ESTIMATORS``.
        price: ``"left"``: a unit costs the parameters that the network would lose with it, given
            all other gates. ``"fixed"``: it costs the weights it has in the dense network (Eq. 17).
        warm_up: The share of the ``learn`` stage over which the price grows from 0. If it does not
            grow slowly, the layer with the most weights per unit is closed before its gates have
            learned.
        settle: The share of the epochs with fixed gates.
        settle_lr: The factor of the learning rate of the weights in that stage.
        average: Whether the weights end as their mean over that stage. Otherwise the learning rate
            decays to zero.
        at_most: The largest share of the parameters that may be left. Units with the lowest phi are
            closed until it is met, when the gates are fixed, and those that still fit are opened
            again.
        **options: Options of an estimator that is given by its name.

    Returns:
        The method, for ``sparsify(model, method=...)``.

    Raises:
        TypeError: The estimator has no such option.
        ValueError: An option is unknown or out of range, or ``at_most`` is given with ``settle=0``.

    Example:
        >>> from l0arm.methods import l0_best
        >>> [stage.name for stage in l0_best(1e-3).stages]
        ['learn', 'settle', 'end']
    """
    check_shares(warm_up=warm_up, settle=settle)
    _check_size(at_most, settle)
    learn = Stage("learn", 1 - settle, penalty=warmed_up(warm_up))
    estimator = estimator_for(l0_best, estimator, options)
    method = replace(l0(lam, estimator=estimator, gate=gate, name="l0-best"), stages=(learn,))
    if price == "left":
        method = replace(method, penalties=(Parameters(lam),), extras=parameter_count)
    elif price != "fixed":
        raise ValueError(f"price must be 'left' or 'fixed'; got {price!r}")
    if at_most < 1.0:  # a share of the full network: with this extra, shrink is refused
        method = replace(method, extras=parameter_count)
    if not settle:
        return method
    method = replace(method, check=CanDecide(at_most))
    decide = Decide(at_most)
    fixed = Stage("settle", settle, enter=decide, lr=settle_lr, gate_lr=0.0, penalty=never)
    if average:
        return _averaged(method, fixed, decide)
    return replace(method, stages=(learn, replace(fixed, anneal=half_cosine)))


def _check_size(at_most: float, settle: float) -> None:
    if not (isinstance(at_most, int | float) and 0.0 < at_most <= 1.0):
        raise ValueError(f"at_most is a share of the parameters, above 0 up to 1; got {at_most!r}")
    if at_most < 1.0 and not settle:
        raise ValueError(
            f"at_most={at_most!r} is applied when the gates are fixed, and with settle=0 they "
            "never are; give settle a share of the epochs, or leave at_most out"
        )


def _averaged(method: Method, settle: Stage, decide: Enter) -> Method:
    """The method with averaged weights in the stage ``settle``, and a stage ``end`` for the mean.

    The last stage changes no weight. It lets batch normalisation see the images with the mean of
    the weights, since its statistics are those of the steps before.
    """
    most = replace(settle, share=(1 - END_SHARE) * settle.share, enter=DecideAndAverage(decide))
    end = replace(settle, name="end", share=END_SHARE * settle.share, enter=take_average, lr=0.0)
    return replace(
        method,
        stages=(*method.stages, most, end),
        extras=weight_average if method.extras is None else Both(method.extras, weight_average),
        after_step=add_to_average,
    )


@dataclass(frozen=True)
class Both:
    """The extras of two parts of a method."""

    one: MakeExtras
    other: MakeExtras

    def __call__(self, gated: Gated) -> Mapping[str, Extra]:
        return {**self.one(gated), **self.other(gated)}


@dataclass(frozen=True)
class CanDecide:
    """A method's ``check`` that refuses, before the training, what ``Decide`` could not do."""

    at_most: float

    def __call__(self, gated: Gated) -> None:
        saturating_phi(gated)
        cost = parameter_cost(gated)
        least = cost.least() / cost.dense
        if least > self.at_most:
            raise ValueError(
                f"at_most={self.at_most:.4g} cannot be reached: with as few units open as each "
                f"group allows, {least:.4g} of the parameters are left; gate more layers, or raise "
                "at_most"
            )


@dataclass(frozen=True)
class Decide:
    """Fix every gate to open or closed with certainty, by the threshold (Eq. 14).

    Units without a path to the output are closed too: their gates had nothing to learn from.
    """

    at_most: float = 1.0

    def __call__(self, gated: Gated, validate: Validate | None) -> None:
        certain = saturating_phi(gated)
        with torch.no_grad():
            alive = close_dead_units(gated.layout, gated.deterministic())
            alive = trimmed(gated, alive, self.at_most)
            gated.phi.copy_(torch.where(alive > 0, certain, -certain))


@dataclass(frozen=True)
class DecideAndAverage:
    """Fix the gates, and start to average the weights."""

    decide: Enter

    def __call__(self, gated: Gated, validate: Validate | None) -> None:
        self.decide(gated, validate)
        begin_average(gated, validate)


def saturating_phi(gated: Gated) -> float:
    """A |phi| at which g is exactly 0 and 1, with finite slopes.

    >>> from l0arm._sparsify import sparsify
    >>> from l0arm.models import MLP
    >>> saturating_phi(sparsify(MLP((3, 2)), method=l0_best(0.0)))
    100.0
    """
    for size in SATURATING:
        with torch.inference_mode(False), torch.enable_grad():  # the caller may have disabled it
            phi = torch.tensor([-size, size], dtype=gated.phi.dtype, device=gated.phi.device)
            phi.requires_grad_()
            probs = gated.method.gate(phi).probs
            (slopes,) = torch.autograd.grad(probs.sum(), phi)
        if probs.tolist() == [0.0, 1.0] and bool(slopes.isfinite().all()):
            return size
    raise ValueError(
        "l0-best ends with gates that are open or closed for sure, but this gate function is never "
        "exactly 0 and 1 (tried: phi up to 256); clamp it, e.g. HardSigmoid(), or give settle=0"
    )


def trimmed(gated: Gated, z: Tensor, at_most: float) -> Tensor:
    """z with units closed, from the lowest phi up, until ``at_most`` of the parameters are left.

    A group keeps its floor, at least one unit, and all units that would save nothing. Units that
    lose their last path to the output are closed together with those that cut it. The last one may
    save more than was needed. Then units that were closed before are opened again, from the highest
    phi down, where they fit.
    """
    cost = parameter_cost(gated)
    limit, left, start = at_most * cost.dense, _left(cost, z), z
    closed: list[int] = []
    for unit in torch.argsort(gated.phi.detach()).tolist():
        if left <= limit:
            break
        if z[unit] > 0 and _spare(gated, z, unit):
            without = z.clone()
            without[unit] = 0.0
            without = close_dead_units(gated.layout, without)
            saved = left - _left(cost, without)
            if saved > 0:
                z, left = without, left - saved
                closed.append(unit)
    for unit in reversed(closed):
        again = z.clone()
        again[unit] = start[unit]
        again = close_dead_units(gated.layout, again)  # it has no path, if others went with it
        if again[unit] > 0 and _left(cost, again) <= limit:
            z = again
    return z


def _left(cost: Cost, z: Tensor) -> float:
    """The number of parameters that are left."""
    with torch.no_grad():
        return float(cost((z > 0).double()))


def _spare(gated: Gated, z: Tensor, unit: int) -> bool:
    """Whether the unit's group has more open units than it must keep."""
    number = int(gated.layout.group_of[unit])
    is_open = int((z[gated.layout.span(number)] > 0).sum())
    return is_open > max(1, gated.groups[number].floor)
