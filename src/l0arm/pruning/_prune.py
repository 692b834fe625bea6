"""``prune``: from a trained network to a small, fine-tuned one, in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from l0arm._sparsify import sparsify
from l0arm.compaction import certificate
from l0arm.contracts import Method
from l0arm.costs.kinds import BudgetLike
from l0arm.equality.example import Example
from l0arm.gating import Gated
from l0arm.gating.cutting import copy_model
from l0arm.gating.synchrony import several_processes
from l0arm.metrics import architecture
from l0arm.planning import Plan
from l0arm.planning import plan as make_plan
from l0arm.pruning.processes import check_joined, share_certificate
from l0arm.pruning.result import PruneResult, compared, score_of
from l0arm.pruning.resuming import SAVES, Checkpoints, digest_of
from l0arm.pruning.scores import Score
from l0arm.pruning.stages import (
    LEARN,
    Choice,
    Pruning,
    check_slopes,
    learning_steps,
    score_named,
)
from l0arm.pruning.stream import preserved_randomness, unchanged_if_refused
from l0arm.pruning.task import Criterion, Step, Task, check_loss
from l0arm.pruning.teaching import Taught
from l0arm.pruning.training import HALF, Precision, Training

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
    train: Literal["all", "gates"] = "all",
    choice: Choice = "scores",
    scores: Score | str | None = "fisher",
    teacher: float = 0.0,
    learn: float | None = None,
    round_to: int = 1,
    example_inputs: Sequence[Any] | Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    plan: Plan | None = None,
    seed: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    precision: Precision | None = None,
    device: torch.device | str | None = None,
    quiet: bool = False,
) -> PruneResult:
    """Make a trained network smaller: rank its units, learn which to keep, cut, fine-tune.

    1. *Rank* and *learn*: the gradients of training steps score the units. In eight rounds those
       with the lowest score per cost are closed, down to the budget, while the weights adapt.
       (``choice="gates"``: scores set the probability of each unit to stay; then gates and weights
       are trained together, while the budget falls to its target.)
    2. *Cut*: every gate is decided so that the network just fits the budget. Closed units are
       removed, with a certificate that the small network computes the same.
    3. *Tune*: the small, plain network is trained for the remaining steps.

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
        train: ``"all"``: weights and units together. ``"gates"``: the weights stay as they are, and
            gates are learned by forward passes alone (``choice`` is then ``"gates"``). The model
            may be frozen, and the loss any number. All steps go into this, unless ``learn`` leaves
            some to tune in after the cut. Units are ranked by their activations where ``scores``
            would need backward passes (``"fisher"``, ``"first-order"``).
        choice: ``"scores"``: units are closed in eight rounds by their scores per cost, and the
            weights are trained in between. ``"gates"``: gates are learned by ``method``, from a
            start by ``scores``. ``docs/peers.md`` compares both with other tools.
        scores: How units are ranked: a name in ``l0arm.pruning.SCORES``, or a function. With
            ``choice="gates"`` it may be None: then all gates start at 0.95. Units of a residual
            stream and whole branches have no slopes: take ``choice="gates"`` with
            ``"activation"`` or ``"magnitude"``.
        teacher: Weight of the dense network as a teacher of the small one, from 0 to 1:
            ``(1 - teacher) loss + teacher * KL`` of the class probabilities at temperature 4. It
            acts where ``loss`` is a function of (output, target), the targets are class numbers and
            the last dimension of the output has the classes. 0: only the loss.
        learn: Share of the steps until the cut. Default: 0.15 with scores, 0.5 with gates.
        round_to: Leave widths that are multiples of this. The budget counts rounded widths.
        example_inputs: Example inputs for planning and counting. Default: the first rows of the
            first batch.
        example_kwargs: Keyword arguments of that call.
        include: Patterns of modules to gate, as for ``plan``. Empty: all.
        exclude: Patterns of modules to leave alone.
        plan: What can be cut, from ``l0arm.plan(model, ...)``: with its residual stream
            (``stream=True``), whole branches (``depth=True``) or positions within heads
            (``head_dims=True``), for instance. None: planned here.
        seed: Seed of the random numbers. None: the global ones are used.
        checkpoint: A folder for checkpoints. If it has some of the same call, that call goes on
            where it was, with the same result bit for bit (on the CPU). Give a ``seed`` too.
        checkpoint_every: Steps between two checkpoints. Default: a twentieth of all steps.
        precision: ``"bf16"`` or ``"fp16"``: forward passes of the training under autocast, fp16
            with a loss scaler. None: the precision of the model.
        device: Where to train. Batches are moved there. None: where the model is.
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
    backward = train != "gates"
    if not backward:
        choice, learn = "gates", 1.0 if learn is None else learn
        scores = "activation" if scores in ("fisher", "first-order") else scores
    score = None if scores is None else score_named(scores)
    _check_choice(train, choice, score, teacher, precision)
    with torch.random.fork_rng(enabled=seed is not None), unchanged_if_refused(batches):
        if seed is not None:
            torch.manual_seed(seed)
        check_joined()
        if checkpoint is not None and several_processes():
            raise ValueError("checkpoints are for one process; with several, leave checkpoint out")
        task = Task.of(batches, loss, epochs, steps)
        learning = learning_steps(
            task.steps, LEARN[choice] if learn is None else learn, tunes=backward
        )
        device = torch.device(device) if device else next(model.parameters()).device
        dense, twin = (copy_model(model).to(device) for _ in range(2))  # the user's stays
        with preserved_randomness(batches):
            check_loss(copy_model(twin), task, device, backward=learning < task.steps)
            dense_score = score_of(dense.eval(), validate)
        example = Example.of(example_inputs, example_kwargs) or task.example()
        example = example.map(lambda tensor: tensor.to(device))
        gated = _gated(twin, example, method, budget, include, exclude, plan, score)
        gated.width_multiple = round_to
        weights = (optimizer or _sgd)(_trained(twin, tunes=learning < task.steps))
        run = Training(
            Pruning(
                *(gated, weights, task.steps),
                learn=learn,
                gate_lr=gate_lr,
                choice=choice,
                scores=score or "fisher",
                backward=backward,
            ),
            task,
            # no teacher, or a step of the user's own
            task.step if task.step is loss or not teacher else Taught(loss, dense, teacher),
            score,
            precision,
            quiet,
        )
        if checkpoint is not None:
            call = {
                "model": digest_of(model),
                "budget": repr(budget),
                "steps": str(task.steps),
                "batches": str(task.length),
                "learn": repr(learn),
                "choice": f"{choice}, {teacher}" + ("" if backward else ", forward passes"),
                "gate_lr": repr(gate_lr),
                "method": gated.method.name,
                "scores": str(scores),
                "seed": repr(seed),
                "round_to": repr(round_to),
                "optimizer": _rates(weights),
                "gates": str([group.units for group in gated.groups]),
                "precision": repr(precision),
            }
            every = checkpoint_every or max(1, task.steps // SAVES)
            run.checkpoints = Checkpoints(Path(checkpoint), every, call)
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed + run.team.rank)  # each process has draws of its own
        run.restore()
        run.train()
        small = run.pruning.finish().eval()
        share_certificate(run.team, small)
        small_score = score_of(small, validate)
        costs = compared(dense, small, example)
    return PruneResult(
        small,
        certificate(small),
        run.history,
        costs["dense"].scored(dense_score),
        costs["small"].scored(small_score),
        architecture(gated),
        example,
    )


def _check_choice(
    train: str, choice: str, score: Score | None, teacher: float, precision: str | None
) -> None:
    if train not in ("all", "gates"):
        raise ValueError(f"train must be 'all' or 'gates'; got {train!r}")
    if precision not in (None, *HALF):
        raise ValueError(f"precision must be 'bf16', 'fp16' or None; got {precision!r}")
    if train == "gates" and precision == "fp16":
        raise ValueError("train='gates' has no gradients to scale; take precision='bf16'")
    if choice not in LEARN:
        raise ValueError(f"choice must be one of {', '.join(LEARN)}; got {choice!r}")
    if choice == "scores" and score is None:
        raise ValueError("choice='scores' needs scores=; with scores=None, take choice='gates'")
    if not 0.0 <= teacher <= 1.0:
        raise ValueError(f"teacher is a weight between 0 and 1; got {teacher!r}")


def _trained(model: nn.Module, *, tunes: bool) -> list[nn.Parameter]:
    """The weights to train, or a stand-in: the steps of its optimizer are counted all the same."""
    if not tunes:
        return [nn.Parameter(torch.zeros(()))]
    return [p for p in model.parameters() if p.requires_grad]


def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9, nesterov=True)


def _gated(
    model: nn.Module,
    example: Example,
    method: Method | str,
    budget: BudgetLike,
    include: Sequence[str],
    exclude: Sequence[str],
    planned: Plan | None,
    score: Score | None,
) -> Gated:
    """The gated network, with its budget."""
    if planned is not None and (include or exclude):
        raise ValueError("a plan has its own include and exclude; pass them to l0arm.plan")
    if planned is None:
        options: dict[str, Any] = {"include": tuple(include)} if include else {}
        planned = make_plan(model, example.args, example.kwargs, exclude=tuple(exclude), **options)
    gated = sparsify(
        model,
        planned,
        method,
        example_inputs=example.args,
        example_kwargs=example.kwargs or None,
        initial=0.95,
        budget=budget,
    )
    if score is not None:
        check_slopes(gated, score)
    return gated


def _rates(optimizer: torch.optim.Optimizer) -> str:
    """An optimizer and its settings, in words."""
    settings = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    return f"{type(optimizer).__name__} {settings}"
