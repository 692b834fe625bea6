"""``prune``: from a trained network to a small, fine-tuned one, in one call."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from l0arm._sparsify import sparsify
from l0arm.compaction import certificate, compact
from l0arm.contracts import Method
from l0arm.costs.kinds import BudgetLike
from l0arm.equality.example import Example
from l0arm.gating import Gated
from l0arm.gating.cutting import copy_model
from l0arm.metrics import architecture
from l0arm.planning import plan
from l0arm.pruning.deciding import decide
from l0arm.pruning.result import PruneResult, costs_of
from l0arm.pruning.scores import SCORES, Score, start_from
from l0arm.pruning.task import Criterion, Step, Task, check_loss, to_device
from l0arm.pruning.tracking import follow_target

RANKED = 30  # batches that the scores see
WARM_UP = 0.05  # of all steps: the learning rate grows linearly
LOGGED = 100  # records in the history
TRACKED = 200  # steps at which the expected cost is put back to its target

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def prune(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Criterion | Step,
    *,
    budget: BudgetLike,
    epochs: float | None = None,
    steps: int | None = None,
    validate: Callable[[nn.Module], float] | None = None,
    optimizer: MakeOptimizer | None = None,
    gate_lr: float | None = None,
    method: Method | str = "l0-disarm",
    scores: Score | str | None = "first-order",
    learn: float = 0.5,
    round_to: int = 1,
    example_inputs: Sequence[Any] | Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    seed: int | None = None,
    quiet: bool = False,
) -> PruneResult:
    """Make a trained network smaller: rank its units, learn which to keep, cut, fine-tune.

    1. *Rank*: scores on a few batches set the probability of each unit to stay.
    2. *Learn*: gates and weights are trained together, while the budget falls to its target.
    3. *Cut*: every gate is decided so that the network just fits the budget. Closed units are
       removed, with a certificate that the small network computes the same.
    4. *Tune*: the small, plain network is trained for the remaining steps.

    One learning-rate schedule covers all stages: a short warm-up, then a half cosine to 0. The
    model that is passed in is not changed.

    Args:
        model: The trained network.
        batches: An iterable of ``(x, y)`` that can be walked again, such as a DataLoader.
        loss: A function of ``(output, target)``, such as ``F.cross_entropy``. A function whose
            first parameter is named ``model`` is called as ``loss(model, batch)`` instead, for
            any kind of batch.
        budget: What may be left: ``{"flops": "25%"}``, ``"40%"`` of the parameters,
            ``{"latency": "50%"}``. See ``sparsify``.
        epochs: Length of the whole training, in walks through the batches.
        steps: Length in optimizer steps, instead of ``epochs``.
        validate: Measures a network, larger is better, such as its accuracy. It is called with
            the dense network before, and with the small one after.
        optimizer: Makes the optimizer of the weights from their parameters. Default: SGD with
            learning rate 0.02 and Nesterov momentum 0.9.
        gate_lr: Learning rate of the gates (Adam). Default: ``max(1e-3, 6 / steps with gates)``, so
            that a gate can change sides within a sixth of them.
        method: A method with learned gates. Its own penalties should be 0.
        scores: How units are ranked: a name in ``l0arm.pruning.SCORES``, a function, or None for
            gates that all start at 0.95.
        learn: Share of the steps with gates.
        round_to: Leave widths that are multiples of this. The budget counts rounded widths.
        example_inputs: Example inputs for planning and counting. Default: the first rows of the
            first batch.
        example_kwargs: Keyword arguments of that call.
        include: Patterns of modules to gate, as for ``plan``. Empty: all.
        exclude: Patterns of modules to leave alone.
        seed: Seed of the random numbers. None: the global ones are used.
        quiet: Print no progress.

    Returns:
        The small network with its certificate, history and costs.

    Raises:
        ValueError: If the batches, the loss, the budget or the length do not fit. Nothing was
            trained then.
        PlanError: If the model cannot be planned.

    Example:
        >>> import torch, l0arm
        >>> import torch.nn.functional as F
        >>> _ = torch.manual_seed(0)
        >>> x, y = torch.randn(60, 6), torch.arange(60) % 3
        >>> batches = [(x[i : i + 20], y[i : i + 20]) for i in range(0, 60, 20)]
        >>> net = torch.nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
        >>> result = l0arm.prune(net, batches, F.cross_entropy, budget="50%", epochs=20, quiet=True)
        >>> result.small.parameters <= result.dense.parameters / 2
        True
    """
    score = SCORES.get(scores) if isinstance(scores, str) else scores
    if isinstance(scores, str) and score is None:
        raise ValueError(f"unknown scores {scores!r}; there are {', '.join(sorted(SCORES))}")
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        task = Task.of(batches, loss, epochs, steps)
        learning = round(learn * task.steps)
        if not 0 < learning < task.steps:
            raise ValueError(
                f"learn={learn!r} of {task.steps} steps leaves no step to "
                f"{'learn' if learning <= 0 else 'tune'} in; it is a share between 0 and 1, and a "
                "training needs more steps"
            )
        run = _Run(model, task, optimizer, quiet)
        example = Example.of(example_inputs, example_kwargs) or task.example()
        dense = run.measure(model, example, validate)
        gated = run.gate(example, method, budget, include, exclude, round_to)
        if score is not None:
            closures = run.closures(gated, RANKED)
            start_from(gated, score(gated, closures))
        run.learn(gated, learning, max(1e-3, 6 / learning) if gate_lr is None else gate_lr)
        small = run.cut(gated)
        units = architecture(gated)
        run.tune(small)
        after = run.measure(small, example, validate)
    return PruneResult(small.eval(), certificate(small), run.history, dense, after, units)


def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9, nesterov=True)


class _Run:
    """One pruning: the data stream, the optimizer of the weights, and what is logged."""

    def __init__(
        self, model: nn.Module, task: Task, optimizer: MakeOptimizer | None, quiet: bool
    ) -> None:
        self.task, self.quiet, self.history = task, quiet, list[dict[str, Any]]()
        self.model = copy_model(model)  # the user's stays as it is
        self.device = next(self.model.parameters()).device
        first = to_device(next(iter(task.batches)), self.device)
        check_loss(task.step(self.model, first))
        self.stream = task.stream()
        self.optimizer = (optimizer or _sgd)(
            [p for p in self.model.parameters() if p.requires_grad]
        )
        self.rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.step, self.printed = 0, 0.0

    def measure(
        self, model: nn.Module, example: Example, validate: Callable[[nn.Module], float] | None
    ) -> Any:
        """Costs of a network, with the user's own measure. The network's modes stay."""
        network = copy_model(model).eval()
        found = costs_of({"it": network}, example.map(lambda t: t.to(self.device)))["it"]
        if validate is None:
            return found
        score = float(validate(network))
        if not math.isfinite(score):
            raise ValueError(f"validate returned {score}; it must return a finite number")
        return replace(found, score=score)

    def gate(
        self,
        example: Example,
        method: Method | str,
        budget: BudgetLike,
        include: Sequence[str],
        exclude: Sequence[str],
        round_to: int,
    ) -> Gated:
        """The gated network, with its budget."""
        options: dict[str, Any] = {"include": tuple(include)} if include else {}
        planned = plan(self.model, example.args, example.kwargs, exclude=tuple(exclude), **options)
        gated = sparsify(
            self.model,
            planned,
            method,
            example_inputs=example.args,
            example_kwargs=example.kwargs or None,
            initial=0.95,
            budget=budget,
        )
        gated.width_multiple = round_to
        return gated

    def closures(self, gated: Gated, count: int) -> list[Callable[[], Tensor]]:
        """The losses of a few batches."""

        def closure(batch: Any) -> Callable[[], Tensor]:
            return lambda: self.task.step(gated, batch)

        count = min(count, self.task.length)
        return [closure(to_device(next(self.stream), self.device)) for _ in range(count)]

    def learn(self, gated: Gated, steps: int, gate_lr: float) -> None:
        """Train gates and weights while the budget falls to its target."""
        assert gated.budget is not None
        gated.budget.schedule(steps)
        own = [gated.phi, *gated.extras.parameters()]
        gates = torch.optim.Adam(own, lr=gate_lr)
        gated.train()
        every = max(1, steps // TRACKED)
        for step in range(steps):
            batch = self._next()
            loss = gated.loss(lambda batch=batch: self.task.step(gated, batch))  # type: ignore[misc]
            self.optimizer.zero_grad()
            gates.zero_grad()
            loss.backward()
            self.optimizer.step()
            gates.step()
            if gated.method.after_step is not None:
                gated.method.after_step(gated, gates)
            if step % every == 0 or step == steps - 1:
                follow_target(gated)
            shares = gated.budget.shares(gated.gates.open_probability)
            self._log("learn", loss.data.item(), shares)

    def cut(self, gated: Gated) -> nn.Module:
        """Decide the gates and remove what is closed. The optimizer goes on with what is left."""
        decide(gated)
        return compact(gated, optimizer=self.optimizer)

    def tune(self, small: nn.Module) -> None:
        """Train the small network for the remaining steps."""
        small.train()
        while self.step < self.task.steps:
            batch = self._next()
            loss = self.task.step(small, batch)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self._log("tune", loss.item(), {})

    def _next(self) -> Any:
        """The next batch. The learning rates follow the schedule."""
        progress = self.step / self.task.steps
        factor = min(1.0, (self.step + 1) / max(1.0, WARM_UP * self.task.steps))
        factor *= 0.5 * (1.0 + math.cos(math.pi * progress))
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        self.step += 1
        return to_device(next(self.stream), self.device)

    def _log(self, stage: str, loss: float, shares: dict[str, tuple[float, float, float]]) -> None:
        """Keep about LOGGED records, and print one line now and then."""
        every = max(1, self.task.steps // LOGGED)
        if self.step % every and self.step != self.task.steps:
            return
        record: dict[str, Any] = {"stage": stage, "step": self.step, "loss": loss}
        for what, (share, now, _) in shares.items():
            record |= {f"{what} share": share, f"{what} target": now}
        self.history.append(record)
        now_printed = time.monotonic()
        if self.quiet or (now_printed - self.printed < 1 and self.step != self.task.steps):
            return
        self.printed = now_printed
        left = "".join(
            f", {what} {100 * share:.0f} % (target {100 * target:.0f} %)"
            for what, (share, target, _) in shares.items()
        )
        print(f"{stage} {self.step}/{self.task.steps}: loss {loss:.4f}{left}", file=sys.stderr)
