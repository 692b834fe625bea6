"""A budget instead of lambda: a limit on the expected cost, and how training keeps to it.

Minimise the data loss subject to E[cost] <= target. The multiplier of the constraint follows its
violation by dual ascent, outside the user's optimizer. A part proportional to the violation damps
its oscillation (the augmented Lagrangian). Where that is too slow, all gates are shifted together
(``tracking.py``), so that the target is met however few steps there are.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from l0arm.costs.expectation import Cost
from l0arm.costs.tracking import follow_target
from l0arm.gating import Gated
from l0arm.precision import Precise

FALLING = 0.6  # of a training: the target falls over it
USUAL = 1000  # steps of a training that the rate of the dual ascent was chosen for
CHECKS = 10  # of whether the cost still falls, in a training whose length is known
SHIFTS = 200  # in a training, at most
SLACK = 0.02  # of the dense cost: farther from the target, the gates are shifted
BEHIND = 0.05  # of the dense cost: farther from the target, the cost is behind


class BudgetWarning(UserWarning):
    """The expected cost does not approach the budget fast enough."""


class Constraint(Precise, ABC):
    """A limit on the expected cost of a gated network: the contract of ``gated.budget``.

    ``Gated.penalty`` adds its value to the penalties, and ``Gated.loss`` calls ``ascend`` once per
    training step. It is a module, so that its state is saved and moved with the network.
    """

    @abstractmethod
    def forward(self, open_probability: Tensor) -> Tensor:
        """The penalty for given open probabilities of all gates, a differentiable scalar."""

    @abstractmethod
    def ascend(self, open_probability: Tensor) -> None:
        """Update the multiplier: one step of dual ascent."""

    @abstractmethod
    def follow(self, gated: Gated) -> None:
        """Before a training step: put an expected cost that lags back to its target."""

    @abstractmethod
    def fits(self, z: Tensor) -> bool:
        """Whether the network with these gates, 0 or 1, keeps to the limit."""

    @abstractmethod
    def schedule(self, steps: int, start: int | None = None) -> None:
        """Meet the limit within so many training steps, from step ``start`` or the next one on."""

    @abstractmethod
    def falling(self) -> str:
        """Why the target is not reached yet, for a person. Empty: it is, or nothing was trained."""

    @abstractmethod
    def shares(self, open_probability: Tensor) -> dict[str, tuple[float, float, float]]:
        """For each limited cost: its share of the dense cost, the target now, and at the end."""


class Budget(Constraint):
    """``mu (E[cost] - target)``, both as shares of the dense cost, with mu >= 0 by dual ascent.

    For the first ``warmup`` steps the target falls linearly from 1, so that the network learns
    before it shrinks. ``schedule(steps)`` fits this to the length of a training; without it, a
    training of a few hundred steps ends before the budget acts. ``sparsify(..., budget="40%")``
    makes one.

    Args:
        cost: The expected cost that is limited.
        target: The limit, as a share of the dense cost.
        what: The name of the cost in messages.
        warmup: Steps until the target is reached.
        rate: Step size of the dual ascent.
        gain: Weight of the part of mu that is proportional to the present violation.
        patience: Steps between two checks of whether the cost still falls.

    Example:
        >>> import l0arm
        >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 4, 2)), budget="60%")
        >>> gated.budget
        Budget(parameters <= 60.0 %)
        >>> gated.budget.cost.dense
        38.0
    """

    integral: Tensor
    steps: Tensor
    earlier: Tensor

    def __init__(
        self,
        cost: Cost,
        target: float,
        *,
        what: str = "parameters",
        warmup: int = 500,
        rate: float = 0.05,
        gain: float = 200.0,
        patience: int = 2000,
    ) -> None:
        super().__init__()
        self.cost, self.target, self.what = cost, target, what
        self.warmup, self.rate, self.gain, self.patience = warmup, rate, gain, patience
        self.every = max(1, round(warmup / FALLING) // SHIFTS)  # steps between two shifts
        self.register_buffer("integral", torch.zeros(()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("earlier", torch.ones(()))

    def forward(self, open_probability: Tensor) -> Tensor:
        """The penalty; its gradient is mu times that of the cost."""
        share = self.cost(open_probability) / self.cost.dense
        excess = share - self.target_now()
        # mu: the sum of the past violations, and a part of the present one
        present = excess.detach()
        multiplier = (self.integral.to(present) + self.gain * present).clamp(min=0.0)
        return multiplier * excess

    def target_now(self) -> float:
        """The target at this step of the warm-up."""
        done = min(1.0, int(self.steps) / self.warmup) if self.warmup else 1.0
        return 1.0 - (1.0 - self.target) * done

    def schedule(self, steps: int, start: int | None = None) -> None:
        """Meet the target within so many training steps.

        The target falls over the first ``FALLING`` of them. The dual ascent is as fast as with the
        default settings in a training of ``USUAL`` steps.

        Args:
            steps: Optimizer steps with gates.
            start: The number of the first of them. None: the next one.

        Raises:
            ValueError: If there are none.

        Example:
            >>> import l0arm
            >>> gated = l0arm.sparsify(l0arm.models.MLP((6, 4, 2)), budget="60%")
            >>> gated.budget.schedule(100)
            >>> gated.budget.warmup
            60
        """
        if steps < 1:
            raise ValueError(f"a budget needs at least one step to be met in; got {steps!r}")
        begun = int(self.steps) if start is None else start
        self.warmup = begun + max(1, round(FALLING * steps))
        self.rate = 0.05 * max(1.0, USUAL / steps)
        self.patience = max(1, steps // CHECKS)
        self.every = max(1, steps // SHIFTS)

    def falling(self) -> str:
        """That the training ended before the target was reached."""
        done = int(self.steps)
        if not 0 < done < self.warmup:
            return ""
        return (
            f"the budget did not act in full: its target falls over {self.warmup} steps, and "
            f"{done} were trained; give sparsify(..., steps={done}), or call "
            f"gated.budget.schedule({done}) before the training"
        )

    def follow(self, gated: Gated) -> None:
        """Shift the gates where the expected cost is ``SLACK`` away from its target."""
        if int(self.steps) % self.every == 0:
            follow_target(gated, SLACK)

    def shares(self, open_probability: Tensor) -> dict[str, tuple[float, float, float]]:
        """The share of the dense cost, the target now, and at the end."""
        share = float(self.cost(open_probability.detach().double())) / self.cost.dense
        return {self.what: (share, self.target_now(), self.target)}

    @torch.no_grad()
    def ascend(self, open_probability: Tensor) -> None:
        """One step of dual ascent; call it once for each step of training."""
        share = self.cost(open_probability) / self.cost.dense
        excess = share - self.target_now()
        self.integral.add_(self.rate * excess).clamp_(min=0.0)
        self.steps += 1
        if int(self.steps) % self.patience == 0:
            self._warn_if_stuck(float(share), float(excess))
            self.earlier.copy_(share)

    def _warn_if_stuck(self, share: float, excess: float) -> None:
        """Warn early that the target will not be reached."""
        gained = float(self.earlier) - share
        if excess > BEHIND and gained < 0.5 * excess:
            warnings.warn(
                f"the expected {self.what} are {100 * share:.1f} % of the dense network's and fell "
                f"by {100 * gained:.1f} points in {self.patience} steps; the budget of "
                f"{100 * self.target:.1f} % will not be reached soon. Raise the learning rate of "
                "the gates (gate_lr), or train longer",
                BudgetWarning,
                stacklevel=5,
            )

    def fits(self, z: Tensor) -> bool:
        """Whether the network with these gates, 0 or 1, costs at most the target."""
        exact = z.double()  # sums beyond 2^24 are exact
        return float(self.cost(exact)) <= self.target * self.cost.dense

    def extra_repr(self) -> str:
        return f"{self.what} <= {100 * self.target:.1f} %"


class Budgets(Constraint):
    """Several budgets at once: the network must keep to all of them.

    Args:
        budgets: The budgets, each of another kind of cost.

    Example:
        >>> import l0arm, torch
        >>> limits = {"params": "60%", "bytes": "50%"}
        >>> l0arm.sparsify(l0arm.models.MLP((6, 4, 2)), budget=limits).budget
        Budgets(parameters <= 60.0 %, bytes <= 50.0 %)
    """

    def __init__(self, budgets: Sequence[Budget]) -> None:
        super().__init__()
        self.each = nn.ModuleList(budgets)

    def _budgets(self) -> list[Budget]:
        return [budget for budget in self.each if isinstance(budget, Budget)]

    def forward(self, open_probability: Tensor) -> Tensor:
        """The sum of the penalties."""
        return torch.stack([budget(open_probability) for budget in self.each]).sum()

    def ascend(self, open_probability: Tensor) -> None:
        """One step of dual ascent for each."""
        for budget in self._budgets():
            budget.ascend(open_probability)

    def follow(self, gated: Gated) -> None:
        """Shift the gates where the costs that exceed their targets most are too far away."""
        self._budgets()[0].follow(gated)

    def schedule(self, steps: int, start: int | None = None) -> None:
        """Meet all targets within so many training steps."""
        for budget in self._budgets():
            budget.schedule(steps, start)

    def falling(self) -> str:
        """That the training ended before the targets were reached."""
        return next(filter(None, (budget.falling() for budget in self._budgets())), "")

    def shares(self, open_probability: Tensor) -> dict[str, tuple[float, float, float]]:
        """The shares and targets of all costs."""
        found: dict[str, tuple[float, float, float]] = {}
        for budget in self._budgets():
            found |= budget.shares(open_probability)
        return found

    def fits(self, z: Tensor) -> bool:
        """Whether the network with these gates keeps to all of them."""
        return all(budget.fits(z) for budget in self._budgets())

    def extra_repr(self) -> str:
        return ", ".join(budget.extra_repr() for budget in self._budgets())

    def __repr__(self) -> str:
        return f"Budgets({self.extra_repr()})"
