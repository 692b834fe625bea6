"""Gradient estimators compared on one problem: bias, variance and cost, with standard errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
from l0arm.lab.errors import UserError
from l0arm.lab.runs.building import preprocess_of
from l0arm.models import MLP

WARMUP = 200  # discarded estimates, during which baselines and control variates adapt
REFERENCE_PAIRS = 200  # antithetic pairs of draws in the reference gradient
NEVER = {"exact", "local-expectation"}  # not compared: they evaluate f for every gate or draw
AT_ONCE = 64  # flipped gates per batch, so that their activations stay in the cache


@dataclass(frozen=True)
class Problem:
    """A function of the gates, and its gradient at three stages of training."""

    name: str
    f: Callable[[Tensor], Tensor]
    stages: dict[str, Tensor]  # pi
    references: dict[str, Reference]  # the gradient in the logit of pi
    weights: tuple[Tensor, ...] = ()  # parameters of f


@dataclass(frozen=True)
class Line:
    """One estimator at one stage. All errors are standard errors."""

    estimator: str
    stage: str
    unbiased: bool  # as the estimator declares
    variance: float  # sum over the gates
    variance_error: float
    ratio: float  # to the variance of ARM
    ratio_error: float
    bias: float  # |mean - gradient| / |gradient|, corrected for noise
    bias_error: float
    bias_limit: float  # upper bound, at three standard errors
    bias_shown: bool  # larger than 0 by three standard errors
    evaluations: float
    evaluations_error: float
    seconds: float  # median
    seconds_spread: float  # half the interquartile range


def quadratic_problem(bits: int = 50, seed: int = 0) -> Problem:
    """A random quadratic with a gradient in closed form."""
    f, random = quadratic(bits, seed), torch.Generator().manual_seed(seed)
    start = 0.4 + 0.2 * torch.rand(bits, generator=random, dtype=torch.float64)
    points = stages(start, random)
    exact = {stage: Reference(f.logit_gradient(pi)) for stage, pi in points.items()}
    return Problem(f"{bits}-bit quadratic", f, points, exact)


def mlp_problem(
    data: Dataset, *, steps: int = 800, seed: int = 0, pairs: int = REFERENCE_PAIRS
) -> Problem:
    """The MLP on a minibatch of 100, after some training under random gates.

    The gradient has no closed form. The reference is the mean of local expectations, in which each
    gate is flipped in turn. Its noise is part of the errors.
    """
    _check_fits(data)
    torch.manual_seed(seed)
    model = MLP()
    gated = sparsify(model, method="l0-disarm", lam=0.0)
    optimizer, preprocess = torch.optim.Adam(gated.model.parameters()), preprocess_of(data)

    def minibatch() -> tuple[Tensor, Tensor]:
        batch = torch.randint(len(data.train_images), (100,))
        return preprocess(data.train_images[batch]), data.train_labels[batch]

    for _ in range(steps):
        x, y = minibatch()
        optimizer.zero_grad()
        F.cross_entropy(gated(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    x, y = minibatch()
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
    """The reference gradient from local expectations at antithetic pairs of draws.

    These are also the first draws that most estimators make with this seed.
    """
    random = torch.Generator().manual_seed(seed)
    draws = [torch.stack(antithetic_pair(uniform_like(pi, random), pi)) for _ in range(pairs)]
    estimates = [
        torch.stack([(1 - 2 * z) * (flipped(z) - f(z).detach()) for z in both]) for both in draws
    ]
    return Reference.sampled(torch.stack(draws), torch.stack(estimates).double() * pi * (1 - pi))


@torch.no_grad()
def flipped_losses(model: MLP, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """The mean cross-entropy of an MLP under z with gate j flipped, for all j.

    The layers before a flipped gate are evaluated once. In the layer that reads it, one column is
    added or removed. Closed hidden units are left out.
    """
    layers = [cast(nn.Linear, model.get_submodule(name)) for name in model.layers]
    gates = torch.split(z, [layer.in_features for layer in layers])
    h, losses = x.flatten(1), []
    for n, (layer, gate) in enumerate(zip(layers, gates, strict=True)):
        after = layer(h * gate)
        for some in torch.split(torch.arange(len(gate), device=z.device), AT_ONCE):
            change = ((1 - 2 * gate[some]) * h[:, some]).T[:, :, None]
            read = layer.weight[:, some].T[:, None, :]
            losses.append(_losses_after(after, change, read, layers[n + 1 :], gates[n + 1 :], y))
        h = F.relu(after)
    return torch.cat(losses)


def _losses_after(
    a: Tensor,
    change: Tensor,
    read: Tensor,
    layers: Sequence[nn.Linear],
    gates: Sequence[Tensor],
    y: Tensor,
) -> Tensor:
    """One loss per flip, from the pre-activations ``a + change read``."""
    opened = [gate.nonzero().flatten() for gate in gates]
    width = opened[0] if opened else torch.arange(a.shape[-1], device=a.device)
    a = a[:, width] + change * read[:, :, width]
    for n, layer in enumerate(layers):
        made = opened[n + 1] if n + 1 < len(layers) else slice(None)
        a = F.linear(F.relu(a), layer.weight[:, opened[n]][made], layer.bias[made])
    each = F.cross_entropy(a.flatten(0, 1), y.repeat(len(a)), reduction="none")
    return each.view(len(a), -1).mean(1)


def compare(problem: Problem, names: Sequence[str], draws: int, seed: int = 0) -> Iterator[Line]:
    """Measure each estimator at each stage."""

    def measured(name: str, stage: str) -> Measured:
        random = torch.Generator().manual_seed(seed)
        pi, weights = problem.stages[stage], problem.weights
        return measure(ESTIMATORS[name](), problem.f, pi, draws, random, WARMUP, weights)

    arm = {stage: measured("arm", stage) for stage in problem.stages}
    for name in names:
        for stage, reference in problem.references.items():
            found = arm[stage] if name == "arm" else measured(name, stage)
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
