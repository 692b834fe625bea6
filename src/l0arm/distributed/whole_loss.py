"""The whole loss as a module, for DistributedDataParallel to wrap.

DDP averages over processes the gradients of what is computed in its forward. phi gets its gradient
from the estimate, which a wrapped network knows nothing of; so the module to wrap is the one that
computes the estimate too. Every setting of DDP then works.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from l0arm.distributed.team import Team
from l0arm.gates.precision import at_least_float32
from l0arm.gating import Loss, NonFiniteLoss

Draws = Literal["own", "shared"]
Closure = Callable[[], Tensor]


class HasLoss(Protocol):
    """A Gated, or another module with a loss like its."""

    def loss(self, closure: Closure, generator: torch.Generator | None = None) -> Loss: ...


class WholeLoss(nn.Module):
    """``step = DistributedDataParallel(WholeLoss(gated)); step(closure, weight=len(y)).backward()``

    The mean over all examples of all R processes, w_r of them here: ``sum_r w_r f_r / sum_r w_r``.
    DDP takes the plain mean over processes, so each loss is multiplied by ``R w_r / sum w``.

    ``draws="own"``: each process has its own u and forms the estimate from its own losses; the mean
    of unbiased estimates is unbiased, and of less variance than one draw. Seed the processes
    differently. ``draws="shared"``: one u for all, and every loss is the mean over processes; the
    masks are equal everywhere. (Own u with averaged losses would be biased by 1/R.)
    """

    generator: torch.Generator | None = None  # of the shared draws

    def __init__(self, gated: nn.Module, draws: Draws = "own") -> None:
        super().__init__()
        if draws not in ("own", "shared"):
            raise ValueError(f"draws must be 'own' or 'shared'; got {draws!r}")
        if not callable(getattr(gated, "loss", None)):
            raise TypeError(
                f"WholeLoss wraps a Gated, got {type(gated).__name__}; sparsify it first"
            )
        self.gated, self.draws = gated, draws

    def forward(
        self, closure: Closure, weight: float = 1.0, generator: torch.Generator | None = None
    ) -> Loss:
        """The loss of this process's examples, ``weight`` of them; its total alone has a graph.

        Every process must call it equally often; one without examples has weight 0.
        """
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"weight must be a number of examples, 0 or more; got {weight!r}")
        team = Team.here(str(next(self.gated.parameters()).device))
        if self.draws == "own":
            return self._with_own_draws(team, closure, weight, generator)
        return self._with_shared_draws(team, closure, weight, generator)

    def _with_own_draws(
        self, team: Team, closure: Closure, weight: float, generator: torch.Generator | None
    ) -> Loss:
        before = [(buffer, buffer.clone()) for buffer in self.gated.buffers()]
        failure: NonFiniteLoss | None = None
        try:
            loss = self._trained.loss(closure, generator)
        except NonFiniteLoss as error:
            failure = error
        weights, failures = team.sum([weight, failure is not None])
        if failures:  # all of them, or the others would wait for this one for ever
            for buffer, old in before:
                buffer.copy_(old)
            raise failure or NonFiniteLoss("data loss of another process", math.nan)
        total = _share(team, weight, weights) * loss.data + loss.penalty
        return Loss(total, loss.data.detach(), loss.penalty.detach())

    def _with_shared_draws(
        self, team: Team, closure: Closure, weight: float, generator: torch.Generator | None
    ) -> Loss:
        def mean_over_processes() -> Tensor:
            value = at_least_float32(closure())
            sums, weights = team.sum([weight * value.item() if weight else 0.0, weight])
            local = _share(team, weight, weights) * value
            return local - local.detach() + sums / weights  # exactly the mean; this one's gradient

        loss = self._trained.loss(mean_over_processes, generator or self._same_everywhere(team))
        return Loss(loss.total, loss.data.detach(), loss.penalty.detach())

    @property
    def _trained(self) -> HasLoss:
        gated: HasLoss = self.gated  # type: ignore[assignment]
        return gated

    def _same_everywhere(self, team: Team) -> torch.Generator:
        """A generator seeded by the first process; save its state to resume bit for bit."""
        if self.generator is None:
            seed = torch.randint(2**62, (), device=team.device)
            self.generator = torch.Generator(next(self.gated.parameters()).device)
            self.generator.manual_seed(int(team.stacked(seed)[0]))
        return self.generator


def _share(team: Team, weight: float, weights: float) -> float:
    """What makes DDP's plain mean over processes the mean over examples."""
    if weights <= 0:
        raise ValueError("the weights of all processes are 0: there is no example to learn from")
    return team.size * weight / weights
