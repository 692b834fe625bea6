"""``search``: which units to keep, for any function of masks, by values alone.

The masks are drawn from Bernoulli gates, whose logits follow an unbiased estimate of the gradient
of the expected value. After every step the logits are shifted so that the expected cost keeps to
a target, which falls from the cost of the start to the budget.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from l0arm.contracts import Estimator
from l0arm.estimators._base import is_finite_number
from l0arm.estimators._named import estimator_for
from l0arm.files import replacing
from l0arm.gating.constancy import Constancy

Mask = npt.NDArray[np.bool_]
Masks = dict[str, Mask]
UnitCost = Mapping[str, Any] | Callable[[str], Any]
FALLING = 0.6  # of the steps: the target falls over them
OPEN = 0.9  # probability of a unit to stay, at the start
FARTHEST = 12.0  # |logit| at most: a gate can always come back


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        masks: The units to keep, by group. They keep to the budget.
        value: The objective at these masks.
        start: The objective at the masks that the start of the search would have chosen.
        cost: The cost of the masks, as a share of all units' cost.
        probabilities: Of each unit to stay, by group.
        evaluations: Calls of the objective.
        history: Step, mean value of the draws, expected share of the cost and target, step by step.
    """

    masks: Masks
    value: float
    start: float
    cost: float
    probabilities: dict[str, npt.NDArray[np.float64]]
    evaluations: int
    history: list[dict[str, float]]


def search(
    f: Callable[[Masks], float],
    groups: Mapping[str, int],
    budget: float | str,
    *,
    cost: UnitCost | None = None,
    steps: int = 500,
    estimator: Estimator | str = "disarm",
    lr: float = 0.1,
    scores: Mapping[str, Any] | None = None,
    spread: float = 1.0,
    blocks: Sequence[int] = (1,),
    seed: int = 0,
    checkpoint: str | Path | None = None,
    every: int = 50,
    stop: Callable[[dict[str, float]], bool] | None = None,
    **options: Any,
) -> SearchResult:
    """Choose the units to keep so that ``f(masks)`` is small and the cost keeps to a budget.

    The objective can be anything: a network in another runtime, a classifier, a simulation. It is
    only evaluated.

    Args:
        f: Returns a number, smaller is better, for a dict with one boolean array per group. The
            arrays cannot be written to.
        groups: The number of units of each group.
        budget: What may be left: ``"50%"``, a share such as ``0.5`` of the cost of all units.
        cost: What each unit costs (such as its parameters): a number or one number per unit, for
            each group by name, or a function of the name. None: every unit costs 1.
        steps: Steps of the search. The target falls to the budget over the first 60 %.
        estimator: An estimator that needs values only: its name in ``ESTIMATORS``, or itself.
        lr: Learning rate of the logits (Adam).
        scores: The importance of the units, one number per unit by group. Those with higher ranks
            within the search start with higher probabilities. None: all start alike.
        spread: How much the scores are trusted: the first logits reach from -spread to spread
            around their mean. With 1, draws differ much. With 4, they are close to the units that
            the scores would keep, so that few evaluations go further.
        blocks: Units that share one gate, from coarse to fine, such as ``(64, 16, 4)``: each size
            has an equal part of the steps. A block has units of one group with neighbouring scores
            (without scores: neighbours). The sizes are those of the cheapest group; groups with
            costlier units have smaller blocks. Fewer gates have less variance, so that a search
            over thousands of units needs fewer evaluations.
        seed: Of the draws.
        checkpoint: A file that holds the state of the search. If it exists, the search goes on from
            it, bit for bit.
        every: Steps between two checkpoints.
        stop: Called with each record of the history. If it returns True, the search ends here, and
            the masks are those of the present probabilities.
        **options: Options of an estimator given by name, such as ``samples``.

    Returns:
        The masks, their value and the history.

    Raises:
        ValueError: The groups, costs, scores or the budget do not fit, the objective returns NaN or
            an infinite number, or the checkpoint belongs to another search.
        TypeError: The objective returns something that is not a number, or the estimator needs
            derivatives.

    Example:
        >>> import l0arm
        >>> def f(masks):  # units 2 and 5 count
        ...     return 1.0 - 0.5 * masks["units"][2] - 0.5 * masks["units"][5]
        >>> found = l0arm.search(f, {"units": 8}, "25%", steps=200)
        >>> found.masks["units"].nonzero()[0].tolist(), found.value
        ([2, 5], 0.0)
    """
    problem = _Problem.of(f, groups, budget, cost)
    if not (isinstance(steps, int) and steps >= 1 and isinstance(every, int) and every >= 1):
        raise ValueError(f"steps and every are integers >= 1; got {steps!r} and {every!r}")
    chosen = copy.deepcopy(estimator_for(search, estimator, options))
    sizes = tuple(blocks)
    if not sizes or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise ValueError(f"blocks are numbers of units >= 1, such as (16, 1); got {blocks!r}")
    state = _State(problem, chosen, lr, seed, _start(problem, scores, spread), steps, sizes)
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and path.exists():
        state.load(path)
    else:
        state.start = problem.value(problem.decided(state.phi))
    while state.step < steps:
        record = state.advance()
        ended = stop is not None and bool(stop(record))
        if path is not None and (ended or state.step % every == 0 or state.step == steps):
            state.save(path)
        if ended:
            break
    keep = problem.decided(state.phi)
    return SearchResult(
        masks=problem.masks(keep),
        value=problem.value(keep),
        start=state.start,
        cost=float(problem.costs @ keep.double()),
        probabilities={n: p.numpy() for n, p in problem.split(state.phi.sigmoid()).items()},
        evaluations=problem.evaluations,
        history=state.history,
    )


class _Problem:
    """The objective as a function of one flat vector, with the costs as shares of their sum."""

    def __init__(
        self, f: Callable[[Masks], float], groups: Mapping[str, int], costs: Tensor, target: float
    ) -> None:
        self.f, self.groups, self.costs, self.target = f, dict(groups), costs, target
        self.evaluations, self.constancy = 0, Constancy()

    @classmethod
    def of(
        cls,
        f: Callable[[Masks], float],
        groups: Mapping[str, int],
        budget: float | str,
        cost: UnitCost | None,
    ) -> _Problem:
        if not groups or not all(isinstance(n, int) and n > 0 for n in groups.values()):
            raise ValueError(
                f"groups gives each group's number of units, such as {{'features': 30}}; got "
                f"{groups!r}"
            )
        of = (lambda name: 1.0) if cost is None else cost if callable(cost) else cost.__getitem__
        parts = [_per_unit("cost", name, of(name), n) for name, n in groups.items()]
        costs = torch.cat(parts)
        if bool((costs < 0).any()) or float(costs.sum()) <= 0:
            raise ValueError("costs must be 0 or more, and not all of them 0")
        share = float(budget[:-1]) / 100 if str(budget).endswith("%") else float(budget)  # type: ignore[index]
        costs = costs / costs.sum()
        if not 0 < share < 1:
            raise ValueError(
                f"budget is a share of the cost of all units, between 0 and 1 or '50%'; got "
                f"{budget!r}"
            )
        return cls(f, groups, costs, share)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.groups, torch.split(flat, list(self.groups.values())), strict=True))

    def masks(self, z: Tensor) -> Masks:
        return {name: part.numpy().astype(np.bool_) for name, part in self.split(z).items()}

    def __call__(self, z: Tensor) -> Tensor:
        """f(z), for estimators."""
        if z.requires_grad:
            raise TypeError(
                "this estimator differentiates the objective, but a search has values only; use "
                "'disarm', 'arms' or 'reinforce-loo'"
            )
        return torch.tensor(self.value(z), dtype=torch.float64)

    def value(self, z: Tensor) -> float:
        masks = self.masks(z)
        for mask in masks.values():
            mask.flags.writeable = False
        found = self.f(masks)
        if isinstance(found, Tensor) and found.numel() == 1:
            found = found.item()
        if isinstance(found, bool) or not isinstance(found, Real):
            raise TypeError(
                f"the objective must return a number, got {type(found).__name__}; reduce it, e.g. "
                "to the mean loss or the share of errors"
            )
        value = float(found)
        if not math.isfinite(value):
            raise ValueError(
                f"the objective is {value} at evaluation {self.evaluations + 1}; it must be finite "
                "for all masks, also for empty groups"
            )
        self.evaluations += 1
        self.constancy.note(value, z, stacklevel=5)
        return value

    def decided(self, phi: Tensor) -> Tensor:
        """The units that stay: those with the highest logits that fit into the budget."""
        keep, left = torch.zeros_like(phi), self.target * (1 + 1e-12)
        for unit in phi.argsort(descending=True, stable=True).tolist():
            price = float(self.costs[unit])
            if price <= left:
                keep[unit] = 1.0
                left -= price
        return keep

    def blocks(self, phi: Tensor, size: int) -> Tensor:
        """The number of each unit's block: neighbours in phi, of one group.

        ``size`` counts units of the cheapest group, so that no gate decides about much more than
        the others.
        """
        if size == 1:
            return torch.arange(len(phi))
        prices = [float(part.mean()) for part in self.split(self.costs).values()]
        cheapest = min(price for price in prices if price > 0)
        numbers, first = [], 0
        for part, price in zip(self.split(phi).values(), prices, strict=True):
            units = max(1, round(size * cheapest / max(price, cheapest)))
            ranks = part.argsort(stable=True, descending=True).argsort()
            numbers.append(first + ranks // units)
            first += -(-len(part) // units)
        return torch.cat(numbers)

    def shifted(self, phi: Tensor, share: float) -> Tensor:
        """``phi - t`` with the t >= 0 that brings the expected cost down to a share.

        All logits move alike. A shift in proportion to the costs would close all expensive units,
        whatever they are worth, because Adam moves every logit by about the same amount.
        """

        def expected(t: float) -> float:
            return float(self.costs @ (phi - t).sigmoid())

        if expected(0.0) <= share:
            return phi
        low, high = 0.0, 1.0
        while expected(high) > share and high < 1e6:
            high *= 2
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if expected(middle) > share else (low, middle)
        return (phi - high).clamp(-FARTHEST, FARTHEST)


class _State:
    """Logits, moments of Adam, random numbers and history: all that a resumed search needs."""

    def __init__(
        self,
        problem: _Problem,
        estimator: Estimator,
        lr: float,
        seed: int,
        phi: Tensor,
        steps: int,
        blocks: tuple[int, ...] = (1,),
    ) -> None:
        if not (is_finite_number(lr) and lr > 0):
            raise ValueError(f"lr must be a finite number > 0, got {lr!r}")
        self.problem, self.estimator, self.lr, self.steps = problem, estimator, lr, steps
        self.phi = phi
        self.first, self.second = torch.zeros_like(phi), torch.zeros_like(phi)
        self.random = torch.Generator().manual_seed(seed)
        self.step, self.start, self.history = 0, math.nan, list[dict[str, float]]()
        self.initial = float(problem.costs @ phi.sigmoid())
        self.stages = [problem.blocks(phi, size) for size in blocks]
        self.identity = repr((problem.groups, problem.target, estimator, lr, seed, steps, blocks))
        self.identity += f" {problem.costs.tolist()} {phi.tolist()}"

    def advance(self) -> dict[str, float]:
        """One step of the search."""
        problem = self.problem
        block = self.stages[self.step * len(self.stages) // self.steps]
        probs = _means(self.phi, block).sigmoid().requires_grad_()
        value = self.estimator(lambda z: problem(z[block]), probs, self.random)
        (slope,) = torch.autograd.grad(value, probs)
        pi = probs.detach()
        gradient = (slope * pi * (1 - pi))[block]  # in the logit, the same for all of a block
        self.step += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.99 * self.second + 0.01 * gradient.square()
        mean, square = self.first / (1 - 0.9**self.step), self.second / (1 - 0.99**self.step)
        moved = self.phi - self.lr * mean / (square.sqrt() + 1e-8)
        done = min(1.0, self.step / max(1.0, FALLING * self.steps))
        target = self.initial + (problem.target - self.initial) * done
        self.phi = problem.shifted(moved.clamp(-FARTHEST, FARTHEST), max(target, problem.target))
        expected = float(problem.costs @ self.phi.sigmoid())
        record = {"step": self.step, "value": value.item(), "cost": expected, "target": target}
        self.history.append(record)
        return record

    def save(self, path: Path) -> None:
        """Write the state, atomically."""
        state: dict[str, Any] = {"identity": self.identity, "phi": self.phi, "first": self.first}
        state |= {"second": self.second, "random": self.random.get_state(), "step": self.step}
        state |= {"start": self.start, "history": self.history}
        problem, memory = self.problem, self.estimator.state
        state |= {"estimator": {} if memory is None else memory.state_dict()}
        watch = problem.constancy
        state["seen"] = (problem.evaluations, watch.count, watch.first, watch.constant)
        with replacing(path) as temporary:
            torch.save(state, temporary)

    def load(self, path: Path) -> None:
        """Go on from a saved state."""
        state = torch.load(path, weights_only=True)
        if state["identity"] != self.identity:
            raise ValueError(
                f"the checkpoint {path} belongs to another search (other groups, costs, budget, "
                "scores, estimator, lr, seed or steps); remove it, or name another file"
            )
        self.phi, self.first, self.second = state["phi"], state["first"], state["second"]
        self.random.set_state(state["random"])
        self.step, self.start, self.history = state["step"], state["start"], state["history"]
        problem = self.problem
        watch = problem.constancy
        problem.evaluations, watch.count, watch.first, watch.constant = state["seen"]
        if self.estimator.state is not None:
            self.estimator.state.load_state_dict(state["estimator"])


def _means(phi: Tensor, block: Tensor) -> Tensor:
    """The mean logit of each block."""
    sums = phi.new_zeros(int(block.max()) + 1).index_add(0, block, phi)
    return sums / torch.bincount(block)


def _start(problem: _Problem, scores: Mapping[str, Any] | None, spread: float) -> Tensor:
    """The first logits: all alike, or spread around their mean by the rank of the scores."""
    if not (is_finite_number(spread) and spread > 0):
        raise ValueError(f"spread must be a finite number > 0, got {spread!r}")
    phi = torch.full((len(problem.costs),), math.log(OPEN / (1 - OPEN)), dtype=torch.float64)
    if scores is None:
        return phi
    flat = torch.cat([_per_unit("scores", n, scores[n], k) for n, k in problem.groups.items()])
    ranks = flat.argsort(stable=True).argsort(stable=True).double()
    return phi + spread * (2 * ranks / max(1, len(flat) - 1) - 1)


def _per_unit(what: str, name: str, given: Any, units: int) -> Tensor:
    values = torch.as_tensor(given, dtype=torch.float64).detach()
    if values.dim() == 0:
        values = values.expand(units)
    if values.shape != (units,) or not bool(values.isfinite().all()):
        raise ValueError(
            f"{what} of group '{name}' must be finite numbers, one or {units}; got shape "
            f"{tuple(values.shape)}"
        )
    return values.clone()
