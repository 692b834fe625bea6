"""Close units in rounds by their scores per cost, while the weights are trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from l0arm.distributed import Team
from l0arm.gating import Gated
from l0arm.methods._l0_best import saturating_phi
from l0arm.pruning.choosing import choose, score_per_cost
from l0arm.pruning.scores import Score, first_order, start_from

ROUNDS = 8  # scores are computed anew in each, with what is closed by then


class Rounds:
    """Closes units of a gated network in equal steps down to its budget.

    First-order scores cost no extra pass: the gates of every training step are a leaf of its graph,
    and their gradient is the score of that batch (``first_order``). Its absolute values are summed
    over the steps of a round. Any other score is computed at the end of the round, from the batch
    of the last step.

    Args:
        gated: A gated network with a budget. All its gates are opened.
        steps: Training steps of all rounds together.
        score: How units are ranked.
    """

    def __init__(self, gated: Gated, steps: int, score: Score) -> None:
        self.gated, self.steps, self.score = gated, steps, score
        self.count, self.done = min(ROUNDS, steps), 0
        self._sure = saturating_phi(gated)
        self._slopes = torch.zeros(gated.layout.gates, device=gated.phi.device)
        self._standing = torch.zeros_like(self._slopes)  # the order in which units were closed
        self._draws = list[Tensor]()
        self._closure: Callable[[], Tensor] | None = None
        with torch.no_grad():
            gated.phi.copy_(self._sure)

    def loss(self, closure: Callable[[], Tensor]) -> Tensor:
        """The data loss with the units that are open now. ``backward`` also scores them."""
        z = self._open().requires_grad_(self.score is first_order and torch.is_grad_enabled())
        self._draws, self._closure = [*self._draws, z], closure
        with self.gated.drawn(z, writes=True):
            return closure()

    def after_step(self, step: int, scale: float = 1.0) -> None:
        """Collect the scores of a training step, and end the round if it was its last step.

        Args:
            step: Training steps that were made.
            scale: What the loss was multiplied by before ``backward``.

        Raises:
            ValueError: If the gates got no gradient in a whole round.
        """
        for z in self._draws:
            if z.grad is not None and bool(z.grad.isfinite().all()):
                self._slopes += z.grad.abs() / scale
        self._draws = []
        if (self.done + 1) * self.steps <= step * self.count:
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
        if self.score is first_order:
            if not bool(self._slopes.any()):
                raise ValueError(
                    "no gradient reached the gates; compute every loss with pruning.loss, from "
                    "pruning.model, and call backward on it"
                )
            scores = self._slopes
        else:
            scores = self.score(self.gated, [] if self._closure is None else [self._closure])
        team = Team.here(str(scores.device))
        return scores if team.size == 1 else team.stacked(scores.to(team.device)).mean(0).to(scores)

    def rank_for_good(self) -> None:
        """Start the gates in the order of the rounds: what closed last is opened again first."""
        if self.done:
            start_from(self.gated, self._standing, lowest=0.2, highest=0.8)

    def _open(self) -> Tensor:
        """The gates as they are: 1 where a unit is open."""
        probability = self.gated.gates.open_probability.detach()
        return (probability > 0.5).to(probability)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training needs, beside the gated network."""
        return {"done": self.done, "standing": self._standing, "slopes": self._slopes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.done = state["done"]
        self._standing = state["standing"].to(self._standing)
        self._slopes = state["slopes"].to(self._slopes)
