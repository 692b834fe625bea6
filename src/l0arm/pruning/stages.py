"""The stages of pruning for any training loop: rank, learn, cut, tune.

``prune`` and the adapters of trainers run this class. A loop of one's own that does the same gets
the same network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from l0arm.compaction import compact
from l0arm.costs.tracking import follow_target
from l0arm.distributed import Team
from l0arm.gating import Gated, Loss
from l0arm.gating.validation import way_out, why_binary
from l0arm.methods._l0_best import saturating_phi
from l0arm.pruning.deciding import decide
from l0arm.pruning.rounds import SUMMED, Rounds
from l0arm.pruning.scores import SCORES, Score, start_from

WARM_UP = 0.05  # of all steps: the learning rate grows linearly
TRACKED = 200  # steps at which the expected cost is put back to its target
LEARN = {"scores": 0.15, "gates": 0.5}  # share of the steps until the cut

Choice = Literal["scores", "gates"]
StageName = Literal["learn", "tune", "done"]


class Pruning:
    """Prunes a gated network in a training loop of yours.

    Make it with the optimizer of the *weights*; the gates have an optimizer of their own in here.
    Compute every loss with ``loss``, from ``pruning.model``. Everything else happens in hooks on
    ``optimizer.step()``: the learning rates follow the schedule, the gates make their step, the
    expected cost follows the budget's falling target. After the last step with gates they are
    decided and the closed units are removed. The optimizer then holds what is left.

    Args:
        gated: A gated network with a budget.
        optimizer: The optimizer of its weights, without phi.
        steps: Optimizer steps of the whole training.
        learn: Share of the steps until the cut. None: 0.15 with scores, 0.5 with gates.
        gate_lr: Learning rate of the gates (Adam). None: ``max(1e-3, 6 / steps with gates)``.
        anneal: Multiply the learning rates of the weights by a warm-up and a half cosine to 0.
            Switch it off where a scheduler sets them.
        cuts: Remove closed units as soon as the gates are decided. False: tuning goes on in the
            gated network with fixed gates, where they cost nothing, and ``finish`` removes them.
            For trainers, which cannot exchange their model.
        choice: ``"scores"``: units are closed in eight rounds by their scores per cost, and the
            weights are trained in between. ``"gates"``: gates are trained with the weights.
        scores: How ``choice="scores"`` ranks units: a name in ``SCORES``, or a function.
        scaler: The loss scaler of a training in float16. It must scale what ``loss`` returns.
        backward: False: gates are learned by forward passes alone, and the weights stay as they are
            until the cut. Needs ``choice="gates"``. With ``learn=1.0`` nothing is tuned.

    Raises:
        ValueError: If there is no budget, too few steps, or the optimizer holds phi.

    Example:
        >>> import l0arm
        >>> import torch.nn.functional as F
        >>> _ = torch.manual_seed(0)
        >>> net, x, y = l0arm.models.MLP((6, 30, 3)), torch.randn(20, 6), torch.arange(20) % 3
        >>> gated = l0arm.sparsify(net, budget="50%", example_inputs=x)
        >>> optimizer = torch.optim.SGD(gated.model.parameters(), lr=0.02)
        >>> pruning = Pruning(gated, optimizer, steps=80)
        >>> while pruning.stage != "done":
        ...     optimizer.zero_grad()
        ...     pruning.loss(lambda: F.cross_entropy(pruning.model(x), y)).backward()
        ...     optimizer.step()
        >>> small = pruning.finish()
        >>> sum(p.numel() for p in small.parameters()) <= 303 / 2
        True
    """

    def __init__(
        self,
        gated: Gated,
        optimizer: torch.optim.Optimizer,
        steps: int,
        *,
        learn: float | None = None,
        gate_lr: float | None = None,
        anneal: bool = True,
        cuts: bool = True,
        choice: Choice = "scores",
        scores: Score | str = "fisher",
        scaler: torch.amp.GradScaler | None = None,
        backward: bool = True,
    ) -> None:
        if gated.budget is None:
            raise ValueError("the model has no budget; give one to sparsify(..., budget='40%')")
        own = [gated.phi, *gated.extras.parameters()]
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if any(id(p) in held for p in own):
            raise ValueError(
                "the optimizer holds phi, but the gates are trained by an optimizer of their own; "
                "build yours from gated.model.parameters()"
            )
        if choice not in LEARN:
            raise ValueError(f"choice must be one of {', '.join(LEARN)}; got {choice!r}")
        saturating_phi(gated)  # refuse now gates that cannot be decided later
        self.gated, self.optimizer, self.steps = gated, optimizer, steps
        if choice == "scores" and not backward:
            raise ValueError("backward=False learns gates by their draws; take choice='gates'")
        share = LEARN[choice] if learn is None else learn
        self.learning = learning_steps(steps, share, tunes=backward)
        self.backward = backward
        score = score_named(scores)
        if choice == "scores":
            check_slopes(gated, score)
        self.rounds = Rounds(gated, self.learning, score) if choice == "scores" else None
        self.anneal, self.cuts, self.scaler = anneal, cuts, scaler
        self.step = 0  # optimizer steps that were made
        self.small: nn.Module | None = None
        rate = max(1e-3, 6 / self.learning) if gate_lr is None else gate_lr
        self.gates = torch.optim.Adam(own, lr=rate)
        gated.budget.schedule(self.learning)
        self._rates: list[Any] = []  # the optimizer's own, while a step multiplies them
        self._hooks = (
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        )

    @property
    def stage(self) -> StageName:
        """What the next step belongs to."""
        if self.step < self.learning:
            return "learn"
        return "tune" if self.step < self.steps else "done"

    @property
    def model(self) -> nn.Module:
        """The network to train now: the gated one, and the small one after the cut."""
        return self.gated if self.small is None else self.small

    def rank(self, losses: Sequence[Callable[[], Tensor]], score: Score | str = "fisher") -> None:
        """Start gates that are trained from scores. Several processes take the mean of theirs.

        Args:
            losses: Functions that compute the loss of one batch from ``gated``.
            score: A name in ``SCORES``, or a function.

        Raises:
            ValueError: If there is no score of this name, the scores do not fit, or units are
                chosen by scores alone, which are collected during the training.
        """
        if self.rounds is not None:
            raise ValueError("rank is for choice='gates'; choice='scores' ranks by itself")
        score = score_named(score)
        check_slopes(self.gated, score)
        scores = score(self.gated, losses)
        team = Team.here(str(scores.device))
        if team.size > 1:
            scores = team.stacked(scores.to(team.device)).mean(0).to(scores)
        start_from(self.gated, scores)
        self._agree(team)

    def loss(self, closure: Callable[[], Tensor]) -> Loss:
        """The loss to call ``backward`` on.

        Args:
            closure: Computes the data loss from ``pruning.model``. While there are gates, it may
                be called twice.

        Returns:
            The total, the data loss and the penalty of the budget.
        """
        if self.small is not None:
            data = closure()
            return Loss(data, data, torch.zeros_like(data))
        if self.rounds is not None:
            self.rounds.closure = closure
        return self.gated.loss(closure, backward=self.backward)

    def finish(self) -> nn.Module:
        """End the training: the small network, with its certificate.

        Gates that are not decided yet are decided now, so that a training may end early. The hooks
        are taken off the optimizer.
        """
        for hook in self._hooks:
            hook.remove()
        self._restore()
        if self.step < self.learning:
            self.step = self.learning
            self._decide()
        return compact(self.gated) if self.small is None else self.small

    def state_dict(self) -> dict[str, Any]:
        """The position in the stages. Save ``gated``, ``small`` and both optimizers beside it."""
        rounds = None if self.rounds is None else self.rounds.state_dict()
        return {"step": self.step, "rounds": rounds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position, with a ``gated`` that was loaded from the same checkpoint.

        If the gates were decided then, the closed units are removed again. Load the states of both
        optimizers, ``optimizer`` and ``gates``, and of ``small`` afterwards.
        """
        self.step = state["step"]
        if self.rounds is not None:
            self.rounds.load_state_dict(state["rounds"])
        if self.cuts and self.step >= self.learning:
            self._cut()

    def factor(self) -> float:
        """What the schedule multiplies the learning rates of the weights by, at this step."""
        if not self.anneal:
            return 1.0
        progress = min(1.0, self.step / self.steps)
        warm = min(1.0, (self.step + 1) / max(1.0, WARM_UP * self.steps))
        return warm * 0.5 * (1.0 + math.cos(math.pi * progress))

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._restore()  # in case the last step failed
        self._rates = [group["lr"] for group in optimizer.param_groups]
        factor = self.factor()
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor
        if self.scaler is not None and self.stage == "learn" and self.rounds is None:
            self.scaler.unscale_(self.gates)

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._restore()
        if self.stage == "learn" and self.rounds is not None:
            self.step += 1
            self.rounds.after_step()
            self._agree(Team.here(str(self.gated.phi.device)))
            if self.step == self.learning:
                self._decide()
        elif self.stage == "learn":
            if self.scaler is None:
                self.gates.step()
            else:
                self.scaler.step(self.gates)
            if self.gated.method.after_step is not None:
                self.gated.method.after_step(self.gated, self.gates)
            every = max(1, self.learning // TRACKED)
            if self.step % every == 0 or self.step == self.learning - 1:
                follow_target(self.gated)
                self._agree(Team.here(str(self.gated.phi.device)))
            self.step += 1
            if self.step == self.learning:
                self._decide()
        else:
            self.step += 1
        self.gates.zero_grad()

    def _restore(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=False):
            group["lr"] = rate
        self._rates = []

    def _decide(self) -> None:
        if self.rounds is not None:
            self.rounds.end()
        decide(self.gated)
        self._agree(Team.here(str(self.gated.phi.device)))
        if self.cuts:
            self._cut()
        else:
            self.gated.penalty_weight = 0.0  # gates that are decided have nothing to pay

    def _cut(self) -> None:
        """Remove the closed units. The optimizer of the weights goes on, if anything is tuned."""
        tuned = self.optimizer if self.learning < self.steps else None
        self.small = compact(self.gated, optimizer=tuned)

    def _agree(self, team: Team) -> None:
        """Let all processes have the gates of the first: measured costs differ between them."""
        if team.size > 1:
            with torch.no_grad():
                phi = team.stacked(self.gated.phi.detach().to(team.device))[0]
                self.gated.phi.copy_(phi)


def learning_steps(steps: int, learn: float, *, tunes: bool = True) -> int:
    """The number of steps until the cut: at least one.

    Args:
        steps: All steps.
        learn: The share of them.
        tunes: Whether a step must be left to tune in.

    Raises:
        ValueError: If no step is left to learn or to tune in.
    """
    most = steps - tunes
    if most < 1 or not 0.0 < learn <= 1.0 or (tunes and learn == 1.0):
        raise ValueError(
            f"learn={learn!r} of {steps} steps leaves no step to "
            f"{'learn' if steps < 1 or not learn > 0.0 else 'tune'} in; learn is a share between 0 "
            "and 1, and a training needs at least 2 steps"
        )
    return min(max(1, round(learn * steps)), most)


def score_named(score: Score | str) -> Score:
    """A score by name, or the function itself.

    Raises:
        ValueError: If there is none of this name.
    """
    if not isinstance(score, str):
        return score
    if score not in SCORES:
        raise ValueError(f"unknown scores {score!r}; there are {', '.join(sorted(SCORES))}")
    return SCORES[score]


def check_slopes(gated: Gated, score: Score) -> None:
    """Refuse scores that are slopes of the loss in gates which have none.

    Raises:
        ValueError: If a group closes units where they are made, as the residual stream does.
    """
    if score in SUMMED and gated.layout.twice:
        group = gated.layout.groups[next(iter(gated.layout.twice))]
        raise ValueError(
            f"group '{group.name}' {why_binary(group)}, so the loss has no slope in its gates for "
            "scores='fisher' or 'first-order'; take choice='gates' with scores='activation' or "
            f"'magnitude', or {way_out(group)}"
        )
