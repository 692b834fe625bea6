"""Close units in rounds by their scores per cost, while the weights are trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from l0arm.contracts import Estimator, Gates, Objective
from l0arm.distributed import Team
from l0arm.equality.example import in_eval
from l0arm.gating import Gated
from l0arm.methods._l0_best import saturating_phi
from l0arm.pruning.choosing import choose, score_per_cost
from l0arm.pruning.scores import Score, first_order, fisher, start_from

ROUNDS = 8  # scores are computed anew in each, with what is closed by then
SCORED = 4  # steps of a round whose batches are scored

# What slopes of batches are summed as: these scores need the gradient of the loss in the gates.
SUMMED: dict[Score, Callable[[Tensor], Tensor]] = {first_order: Tensor.abs, fisher: Tensor.square}


class Rounds(Estimator):
    """Closes units of a gated network in equal steps down to its budget.

    It takes the place of the network's estimator, so that ``gated.loss`` evaluates the units that
    are open, in any training loop. The last few batches of a round are evaluated a second time, in
    eval mode, for the gradient of the loss in the gates (``fisher``, ``first_order``). Any other
    score is computed at the end of the round, from the batch of the last step.

    Args:
        gated: A gated network with a budget. All its gates are opened.
        steps: Training steps of all rounds together. The first round takes ``SCORED`` steps, so
            that most of the training goes into small networks.
        score: How units are ranked.

    Attributes:
        closure: Computes the loss of the last step, for scores that need no such gradient.
    """

    takes = "binary"
    closure: Callable[[], Tensor] | None = None

    def __init__(self, gated: Gated, steps: int, score: Score) -> None:
        self.gated, self.steps, self.score = gated, steps, score
        self.count, self.done, self.step = min(ROUNDS, steps), 0, 0
        self.scored = min(SCORED, steps // self.count)
        self._sure = saturating_phi(gated)
        self._slopes = torch.zeros(gated.layout.gates, device=gated.phi.device)
        self._standing = torch.zeros_like(self._slopes)  # the order in which units were closed
        self._before = gated.estimator
        gated.estimator, gated.penalty_weight = self, 0.0  # the budget itself does not act
        with torch.no_grad():
            gated.phi.fill_(self._sure)

    def __call__(
        self, f: Objective, gates: Gates | Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """The loss with the units that are open now, whose scores are collected."""
        z = self._open()
        value = f(z)
        due = self._last_step - self.scored <= self.step < self._last_step
        if due and self.score in SUMMED and torch.is_grad_enabled():
            leaf = z.clone().requires_grad_()
            with in_eval(self.gated):
                (slope,) = torch.autograd.grad(f(leaf), leaf)
            self._slopes += SUMMED[self.score](slope)
        return value

    @property
    def _last_step(self) -> int:
        """Steps that are made when this round ends."""
        return self.done * self.steps // self.count + self.scored

    def after_step(self) -> None:
        """Count a training step, and close units if it was the last one of a round.

        Raises:
            ValueError: If no loss of this round was computed by ``gated.loss``.
        """
        self.step += 1
        if self.step == self._last_step and self.done < self.count:
            self._close()

    def _close(self) -> None:
        """Close the units with the lowest score per cost, for good."""
        scores, z = self._scores(), self._open()
        value = score_per_cost(self.gated, z, scores)
        self.done += 1
        kept = choose(self.gated, z, scores, left=1.0 - self.done / self.count)
        ranks = value.argsort().argsort().to(self._standing) / len(value)
        self._standing = torch.where(z > 0, self.done + ranks, self._standing)
        self._standing = torch.where(kept > 0, ROUNDS + 1 + ranks, self._standing)
        self._slopes.zero_()
        with torch.no_grad():
            self.gated.phi.copy_(torch.where(kept > 0, self._sure, -self._sure))

    def _scores(self) -> Tensor:
        """The scores of this round, the mean over all processes."""
        if self.score in SUMMED:
            if not bool(self._slopes.any()):
                raise ValueError(
                    "no unit was scored; compute every loss with pruning.loss or gated.loss, and "
                    "from the gated model"
                )
            scores = self._slopes
        else:
            scores = self.score(self.gated, [] if self.closure is None else [self.closure])
        team = Team.here(str(scores.device))
        return scores if team.size == 1 else team.stacked(scores.to(team.device)).mean(0).to(scores)

    def end(self) -> None:
        """Give the network its estimator back, and its gates the order of the rounds.

        What closed last is the first to be opened again.
        """
        self.gated.estimator = self._before
        if self.done:
            start_from(self.gated, self._standing, lowest=0.2, highest=0.8)

    def _open(self) -> Tensor:
        """The gates as they are: 1 where a unit is open."""
        probability = self.gated.gates.open_probability.detach()
        return (probability > 0.5).to(probability)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training needs, beside the gated network."""
        tensors = {"standing": self._standing, "slopes": self._slopes}
        return {"done": self.done, "step": self.step, **tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.done, self.step = state["done"], state["step"]
        self._standing = state["standing"].to(self._standing)
        self._slopes = state["slopes"].to(self._slopes)
