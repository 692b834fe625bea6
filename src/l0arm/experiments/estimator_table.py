"""Estimators side by side: bias, variance and cost on one problem, each with its standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from l0arm.data import Dataset
from l0arm.entry import sparsify
from l0arm.estimators import ESTIMATORS, Estimator
from l0arm.estimators.comparison import Measured, loss_under, measure, quadratic, stages
from l0arm.experiments.preparation import preprocess_of
from l0arm.models import MLP

WARMUP = 200  # estimates thrown away: baselines fill, control variates tune
REFERENCE_DRAWS = 20  # of the local expectation, whose noise is small
NEVER = {"exact", "local-expectation"}  # evaluate f for every gate or every draw


@dataclass(frozen=True)
class Problem:
    """A function of the gates at three stages of training, and its gradient there."""

    name: str
    f: Callable[[Tensor], Tensor]
    stages: dict[str, Tensor]  # pi
    gradients: dict[str, Tensor]  # in the logit of pi, exact or nearly so


@dataclass(frozen=True)
class Line:
    """One estimator at one stage."""

    estimator: str
    stage: str
    unbiased: bool  # as it claims
    variance: float  # sum over the gates
    variance_error: float
    bias: float  # |mean - gradient| / |gradient|
    bias_error: float  # what noise alone would show
    evaluations: float
    seconds: float


def quadratic_problem(bits: int = 50, seed: int = 0) -> Problem:
    """A random quadratic, whose gradient is known in closed form."""
    f, random = quadratic(bits, seed), torch.Generator().manual_seed(seed)
    start = 0.4 + 0.2 * torch.rand(bits, generator=random, dtype=torch.float64)
    points = stages(start, random)
    return Problem(
        f"{bits}-bit quadratic", f, points, {s: f.logit_gradient(p) for s, p in points.items()}
    )


def mlp_problem(data: Dataset, *, steps: int = 800, seed: int = 0) -> Problem:
    """The MLP on a minibatch of 100, after some training under random gates.

    There is no closed form: the gradient is the mean of a few local expectations, in which each
    gate is flipped in turn.
    """
    torch.manual_seed(seed)
    gated = sparsify(MLP(), method="l0-disarm", lam=0.0)
    optimizer, preprocess = torch.optim.Adam(gated.model.parameters()), preprocess_of(data)

    def loss(batch: Tensor) -> Tensor:
        x, y = preprocess(data.train_images[batch]), data.train_labels[batch]
        return F.cross_entropy(gated(x), y)

    for _ in range(steps):
        optimizer.zero_grad()
        loss(torch.randint(len(data.train_images), (100,))).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    fixed = torch.randint(len(data.train_images), (100,))
    f, points = loss_under(gated, lambda: loss(fixed)), stages(gated.gates.probs)
    local = ESTIMATORS["local-expectation"]()
    gradients = {s: measure(local, f, pi, REFERENCE_DRAWS).mean for s, pi in points.items()}
    return Problem(f"MLP on a minibatch of 100 ({data.name})", f, points, gradients)


def compare(problem: Problem, names: Sequence[str], draws: int, seed: int = 0) -> Iterator[Line]:
    """Measure each estimator at each stage."""
    for name in names:
        for stage, pi in problem.stages.items():
            estimator, random = ESTIMATORS[name](), torch.Generator().manual_seed(seed)
            found = measure(estimator, problem.f, pi, draws, random, WARMUP)
            yield _line(name, stage, estimator, found, problem.gradients[stage])


def _line(name: str, stage: str, estimator: Estimator, found: Measured, gradient: Tensor) -> Line:
    return Line(
        estimator=name,
        stage=stage,
        unbiased=estimator.unbiased,
        variance=found.total_variance,
        variance_error=found.total_variance_error,
        bias=found.relative_bias(gradient),
        bias_error=float(found.standard_error.norm() / gradient.norm()),
        evaluations=found.evaluations,
        seconds=found.seconds,
    )
