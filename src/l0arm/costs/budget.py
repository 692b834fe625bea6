"""A budget instead of lambda: a multiplier that rises until the expected cost fits.

Minimise the data loss subject to E[cost] <= target. The multiplier of the constraint follows its
violation by dual ascent, outside the user's optimizer; a part proportional to the violation keeps
it from swinging (the augmented Lagrangian).
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from l0arm.costs.cost import ExpectedCost
from l0arm.gates.precision import Precise


class BudgetWarning(UserWarning):
    """The expected cost does not move towards the budget fast enough."""


class Budget(Precise):
    """``mu (E[cost] - target)``, both as shares of the dense cost, with mu >= 0 by dual ascent.

    For the first ``warmup`` steps the target comes down in a line from 1: the network learns before
    it shrinks. ``what`` names the cost in messages.
    """

    integral: Tensor
    steps: Tensor
    earlier: Tensor

    def __init__(
        self,
        cost: ExpectedCost,
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
        self.register_buffer("integral", torch.zeros(()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("earlier", torch.ones(()))

    def forward(self, pi: Tensor) -> Tensor:
        """The penalty at the present gates; its gradient is mu times that of the cost."""
        share = self.cost(pi) / self.cost.dense
        excess = share - self.target_now()
        return self.multiplier(excess.detach()) * excess

    def multiplier(self, excess: Tensor) -> Tensor:
        """mu: what the past violations add up to, and a part of the present one."""
        return (self.integral.to(excess) + self.gain * excess).clamp(min=0.0)

    def target_now(self) -> float:
        """Where the cost should be at this step."""
        done = min(1.0, int(self.steps) / self.warmup) if self.warmup else 1.0
        return 1.0 - (1.0 - self.target) * done

    @torch.no_grad()
    def ascend(self, pi: Tensor) -> None:
        """One step of dual ascent; call it once for each step of training."""
        share = self.cost(pi) / self.cost.dense
        self.integral.add_(self.rate * (share - self.target_now())).clamp_(min=0.0)
        self.steps += 1
        if int(self.steps) % self.patience == 0:
            self._warn_if_stuck(float(share))
            self.earlier.copy_(share)

    def _warn_if_stuck(self, share: float) -> None:
        """Say early that the target will not be reached."""
        missing, gained = share - self.target, float(self.earlier) - share
        if int(self.steps) > self.warmup and missing > 0.02 and gained < 0.1 * missing:
            warnings.warn(
                f"the expected {self.what} are {100 * share:.1f} % of the dense network's and fell "
                f"by {100 * gained:.1f} points in {self.patience} steps; the budget of "
                f"{100 * self.target:.1f} % will not be reached soon. Raise the learning rate of "
                "the gates (gate_lr), or train longer",
                BudgetWarning,
                stacklevel=5,
            )

    def extra_repr(self) -> str:
        return f"{self.what} <= {100 * self.target:.1f} %"
