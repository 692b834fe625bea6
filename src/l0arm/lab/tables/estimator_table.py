"""Estimators side by side: bias, variance and cost on one problem, each with its standard error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from l0arm._sparsify import sparsify
from l0arm.estimators import ESTIMATORS
from l0arm.estimators._surrogate import antithetic_pair, uniform_like
from l0arm.estimators.comparison import (
    Measured,
    Reference,
    loss_under,
    measure,
    quadratic,
    stages,
)
from l0arm.lab.data import Dataset
from l0arm.lab.runs.errors import UserError
from l0arm.lab.runs.preparation import preprocess_of
from l0arm.lab.tables.flipped_losses import flipped_losses
from l0arm.models import MLP

WARMUP = 200  # estimates thrown away: baselines fill, control variates tune
REFERENCE_PAIRS = 200  # of local expectations, at most
NEVER = {"exact", "local-expectation"}  # evaluate f for every gate or every draw


@dataclass(frozen=True)
class Problem:
    """A function of the gates at three stages of training, and its gradient there."""

    name: str
    f: Callable[[Tensor], Tensor]
    stages: dict[str, Tensor]  # pi
    references: dict[str, Reference]  # the gradient in the logit of pi
    weights: tuple[Tensor, ...] = ()  # what f depends on besides the gates


@dataclass(frozen=True)
class Line:
    """One estimator at one stage; an error is a standard error."""

    estimator: str
    stage: str
    unbiased: bool  # as it claims
    variance: float  # sum over the gates
    variance_error: float
    ratio: float  # to the variance of ARM
    ratio_error: float
    bias: float  # |mean - gradient| / |gradient|, noise taken off
    bias_error: float
    bias_limit: float  # it is below this, by three standard errors
    bias_shown: bool  # it is above 0, by three standard errors
    evaluations: float
    evaluations_error: float
    seconds: float  # the median
    seconds_spread: float  # half of the range of the middle half


def quadratic_problem(bits: int = 50, seed: int = 0) -> Problem:
    """A random quadratic, whose gradient is known in closed form."""
    f, random = quadratic(bits, seed), torch.Generator().manual_seed(seed)
    start = 0.4 + 0.2 * torch.rand(bits, generator=random, dtype=torch.float64)
    points = stages(start, random)
    exact = {stage: Reference(f.logit_gradient(pi)) for stage, pi in points.items()}
    return Problem(f"{bits}-bit quadratic", f, points, exact)


def mlp_problem(
    data: Dataset, *, steps: int = 800, seed: int = 0, pairs: int = REFERENCE_PAIRS
) -> Problem:
    """The MLP on a minibatch of 100, after some training under random gates.

    There is no closed form: the gradient is the mean of local expectations, in which each gate is
    flipped in turn, and their noise is taken into account.
    """
    _check_fits(data)
    torch.manual_seed(seed)
    model = MLP()
    gated = sparsify(model, method="l0-disarm", lam=0.0)
    optimizer, preprocess = torch.optim.Adam(gated.model.parameters()), preprocess_of(data)

    def chosen() -> tuple[Tensor, Tensor]:
        batch = torch.randint(len(data.train_images), (100,))
        return preprocess(data.train_images[batch]), data.train_labels[batch]

    for _ in range(steps):
        x, y = chosen()
        optimizer.zero_grad()
        F.cross_entropy(gated(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    x, y = chosen()
    f, points = loss_under(gated, lambda: F.cross_entropy(gated(x), y)), stages(gated.gates.probs)
    flips = partial(flipped_losses, model, x, y)
    references = {s: local_expectations(f, flips, pi, pairs, seed) for s, pi in points.items()}
    name, weights = f"MLP on a minibatch of 100 ({data.name})", tuple(model.parameters())
    return Problem(name, f, points, references, weights)


def _check_fits(data: Dataset) -> None:
    shape = tuple(data.train_images.shape[1:])
    if math.prod(shape) != 784 or data.classes > 10:
        raise UserError(
            f"the MLP has 784 inputs and 10 classes, but the images of '{data.name}' are "
            f"{' x '.join(map(str, shape))}, in {data.classes} classes; take mnist, mnist-mini or "
            "fashion-mnist"
        )


def local_expectations(
    f: Callable[[Tensor], Tensor],
    flipped: Callable[[Tensor], Tensor],
    pi: Tensor,
    pairs: int,
    seed: int = 0,
) -> Reference:
    """At antithetic pairs of draws, the first ones that most estimators make with this seed."""
    random = torch.Generator().manual_seed(seed)
    draws = [torch.stack(antithetic_pair(uniform_like(pi, random), pi)) for _ in range(pairs)]
    estimates = [
        torch.stack([(1 - 2 * z) * (flipped(z) - f(z).detach()) for z in both]) for both in draws
    ]
    return Reference.sampled(torch.stack(draws), torch.stack(estimates).double() * pi * (1 - pi))


def compare(problem: Problem, names: Sequence[str], draws: int, seed: int = 0) -> Iterator[Line]:
    """Measure each estimator at each stage."""

    def taken(name: str, stage: str) -> Measured:
        random = torch.Generator().manual_seed(seed)
        pi, weights = problem.stages[stage], problem.weights
        return measure(ESTIMATORS[name](), problem.f, pi, draws, random, WARMUP, weights)

    arm = {stage: taken("arm", stage) for stage in problem.stages}
    for name in names:
        for stage, reference in problem.references.items():
            found = arm[stage] if name == "arm" else taken(name, stage)
            yield _line(name, stage, found, arm[stage], reference)


def _line(name: str, stage: str, found: Measured, arm: Measured, reference: Reference) -> Line:
    bias = found.relative_bias(reference)
    ratio, ratio_error = found.variance_ratio(arm)
    return Line(
        estimator=name,
        stage=stage,
        unbiased=ESTIMATORS[name]().unbiased,
        variance=found.total_variance,
        variance_error=found.total_variance_error,
        ratio=ratio,
        ratio_error=ratio_error,
        bias=bias.size,
        bias_error=bias.error,
        bias_limit=bias.limit,
        bias_shown=bias.shown,
        evaluations=found.evaluations,
        evaluations_error=found.evaluations_error,
        seconds=found.seconds,
        seconds_spread=found.seconds_spread,
    )
