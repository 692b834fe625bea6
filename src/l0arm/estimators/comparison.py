"""Bias, variance and cost of an estimator, measured on a problem, and two problems to use.

A problem is a function f of binary gates: a quadratic with a known gradient, or the loss of a gated
network.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l0arm.contracts import Estimator, Objective
from l0arm.estimators.bias import Bias, Reference
from l0arm.gating import Gated
from l0arm.gating.draw import Draw
from l0arm.gating.randomness import SharedRandomness
from l0arm.precision import at_least_float32

__all__ = [
    "Bias",
    "Measured",
    "Quadratic",
    "Reference",
    "loss_under",
    "measure",
    "quadratic",
    "stages",
]

ENDS = {"polarised": 0.02, "converged": 0.002}  # the distance of pi from 0 or 1


@dataclass(frozen=True)
class Measured:
    """Many estimates of dE[f]/dlogit(pi), and what they cost.

    Attributes:
        estimates: One row per estimate, in float64.
        draws: Where f was evaluated first, one row per estimate.
        times: Seconds of the calling thread per estimate, backward passes included.
        calls: Evaluations of f per estimate.
    """

    estimates: Tensor = field(repr=False)
    draws: Tensor = field(repr=False)
    times: Tensor = field(repr=False)
    calls: Tensor = field(repr=False)

    @property
    def seconds(self) -> float:
        """The median time of one estimate. A few disturbed ones do not change it."""
        return float(self.times.median())

    @property
    def seconds_spread(self) -> float:
        """Half of the interquartile range of the times."""
        low, high = self.times.quantile(torch.tensor([0.25, 0.75], dtype=self.times.dtype))
        return float(high - low) / 2

    @property
    def evaluations(self) -> float:
        """Mean evaluations of f per estimate."""
        return float(self.calls.mean())

    @property
    def evaluations_error(self) -> float:
        """The standard error of the evaluations."""
        return float(self.calls.std()) / math.sqrt(len(self.calls))

    @property
    def mean(self) -> Tensor:
        """The mean estimate, per gate."""
        return self.estimates.mean(0)

    @property
    def standard_error(self) -> Tensor:
        """The standard error of the mean, per gate."""
        return self.estimates.std(0) / math.sqrt(len(self.estimates))

    @property
    def total_variance(self) -> float:
        """``sum_j Var(s_j)``."""
        return float(self.estimates.var(0).sum())

    @property
    def total_variance_error(self) -> float:
        """The standard error of the total variance."""
        return float(self._squared.std() / math.sqrt(len(self._squared)))

    @property
    def _squared(self) -> Tensor:
        """Squared distances from the mean. Their mean is the total variance."""
        return (self.estimates - self.mean).square().sum(1)

    def variance_ratio(self, other: Measured) -> tuple[float, float]:
        """The total variance divided by that of as many other estimates, and its standard error.

        The error accounts for noise that both share (the same seed).
        """
        ratio = self.total_variance / other.total_variance
        residual = self._squared - ratio * other._squared
        return ratio, float(residual.std() / math.sqrt(len(residual)) / other.total_variance)

    def bias(self, exact: Tensor) -> Tensor:
        """The mean minus the gradient, per gate."""
        return self.mean - exact

    def z_scores(self, exact: Tensor) -> Tensor:
        """The bias in standard errors: standard normal for an unbiased estimator and many draws.

        It is infinite for a gate that no draw moved, which can happen near pi = 0 and 1. Take more
        draws then.
        """
        bias = self.bias(exact)
        rounding = 1e-12 * (1 + exact.abs())
        return torch.where(bias.abs() < rounding, 0.0, bias / self.standard_error)

    def relative_bias(self, gradient: Tensor | Reference) -> Bias:
        """``|mean - gradient| / |gradient|``, corrected for the noise of both."""
        reference = gradient if isinstance(gradient, Reference) else Reference(gradient)
        return reference.bias_of(self.estimates, self.draws)


def measure(
    estimator: Estimator,
    f: Objective,
    probs: Tensor,
    draws: int = 1000,
    generator: torch.Generator | None = None,
    warmup: int = 0,
    weights: Iterable[Tensor] = (),
) -> Measured:
    """Take many estimates at the same probabilities.

    Args:
        estimator: It is copied, so its state does not change.
        f: The loss as a function of the gates.
        probs: pi.
        draws: The number of estimates.
        generator: The source of random numbers. None: the global one.
        warmup: Estimates before them that are discarded. They fill a baseline or tune a control
            variate. They use random numbers of their own, so the draws that count do not depend on
            ``warmup``.
        weights: Tensors that f depends on besides z. Every estimate then includes the backward pass
            to them, as a training step does, which takes most of its time.

    Returns:
        The estimates, with their draws, times and numbers of evaluations.

    Raises:
        ValueError: There are fewer than 2 draws.

    Example:
        >>> import torch
        >>> from l0arm.estimators import DisARM
        >>> from l0arm.estimators.comparison import measure, quadratic
        >>> problem, pi = quadratic(bits=4), torch.full((4,), 0.5, dtype=torch.float64)
        >>> found = measure(DisARM(), problem, pi, 100, torch.Generator().manual_seed(0))
        >>> found.evaluations, bool(found.z_scores(problem.logit_gradient(pi)).abs().max() < 4)
        (2.0, True)
    """
    if draws < 2:
        raise ValueError(f"a variance takes at least 2 draws; got draws={draws}")
    estimator, weights = copy.deepcopy(estimator), tuple(weights)
    other = generator and torch.Generator(generator.device)
    if generator and other:
        other.manual_seed(generator.initial_seed() + 1)
    for _ in range(warmup):
        _estimate(estimator, f, probs, other, weights)
    taken = [_measured(estimator, f, probs, generator, weights) for _ in range(draws)]
    rows, first, times, calls = zip(*taken, strict=True)
    return Measured(
        torch.stack(rows).double(),
        torch.stack(first),
        torch.tensor(times, dtype=torch.float64),
        torch.tensor(calls, dtype=torch.float64),
    )


def _measured(
    estimator: Estimator,
    f: Objective,
    probs: Tensor,
    generator: torch.Generator | None,
    weights: Sequence[Tensor],
) -> tuple[Tensor, Tensor, float, int]:
    """An estimate, its first draw, its seconds and its evaluations of f."""
    seen: list[Tensor] = []

    def watched(z: Tensor) -> Tensor:
        seen.append(z.detach())
        return f(z)

    start = time.thread_time()
    estimate = _estimate(estimator, watched, probs, generator, weights)
    return estimate, seen[0], time.thread_time() - start, len(seen)


def _estimate(
    estimator: Estimator,
    f: Objective,
    probs: Tensor,
    generator: torch.Generator | None,
    weights: Sequence[Tensor],
) -> Tensor:
    """One estimate of dE/dlogit(pi). Autograd returns dE/dpi, so it is times pi (1 - pi)."""
    leaf = probs.detach().clone().requires_grad_()
    value = estimator(f, leaf, generator)
    per_pi, *_ = torch.autograd.grad(value, [leaf, *weights], allow_unused=True)
    return per_pi * (probs * (1 - probs)).detach()


@dataclass(frozen=True)
class Quadratic:
    """``f(z) = offset + linear . z + z' coupling z``, coupling symmetric with an empty diagonal.

    f is linear in each single gate, so E[f] = f(pi), and the gradient is that of f at pi.
    """

    offset: float
    linear: Tensor
    coupling: Tensor

    def __call__(self, z: Tensor) -> Tensor:
        return self.offset + self.linear @ z + z @ self.coupling @ z

    def gradient(self, pi: Tensor) -> Tensor:
        """dE[f]/dpi."""
        return self.linear + 2 * self.coupling @ pi

    def logit_gradient(self, pi: Tensor) -> Tensor:
        """dE[f]/dlogit(pi), the gradient that ``measure`` estimates."""
        return self.gradient(pi) * pi * (1 - pi)


def quadratic(bits: int = 50, seed: int = 0, offset: float = 2.3) -> Quadratic:
    """A random quadratic with both parts of f of order 1.

    Args:
        bits: The number of gates.
        seed: Of the coefficients: linear ones N(0, 1/bits), couplings N(0, 1/bits^2).
        offset: The constant part of f.

    Returns:
        The function, in float64.

    Example:
        >>> import torch
        >>> from l0arm.estimators.comparison import quadratic
        >>> problem = quadratic(bits=3)
        >>> problem(torch.zeros(3, dtype=torch.float64)).item()
        2.3
    """
    random = torch.Generator().manual_seed(seed)
    linear = torch.randn(bits, generator=random, dtype=torch.float64) / bits**0.5
    coupling = torch.randn(bits, bits, generator=random, dtype=torch.float64) / bits
    coupling = (coupling + coupling.T) / 2
    return Quadratic(offset, linear, coupling - torch.diag(coupling.diag()))


def stages(probs: Tensor, generator: torch.Generator | None = None) -> dict[str, Tensor]:
    """Probabilities at three points of a training run.

    Each gate is drawn open or closed once, with its probability at the start.

    Args:
        probs: pi at the start.
        generator: The source of random numbers. None: the global one.

    Returns:
        pi at the ``"start"``, ``"polarised"`` (.02 or .98) and ``"converged"`` (.002 or .998).

    Example:
        >>> import torch
        >>> from l0arm.estimators.comparison import stages
        >>> stages(torch.tensor([1.0, 0.0]))["polarised"]
        tensor([0.9800, 0.0200])
    """
    pi = at_least_float32(probs.detach())
    u = torch.rand(pi.shape, generator=generator, dtype=pi.dtype, device=pi.device)
    ends = {n: torch.where(u < pi, 1 - end, end).to(pi) for n, end in ENDS.items()}
    return {"start": pi, **ends}


def loss_under(gated: Gated, closure: Callable[[], Tensor]) -> Objective:
    """The data loss of a gated network as a function of z. The model does not change.

    Every evaluation uses the same random numbers (dropout) and writes no buffers. If z requires a
    gradient, nothing is dropped.

    Args:
        gated: The network.
        closure: Calls ``gated`` on a batch and returns the loss.

    Returns:
        The function f(z).

    Example:
        >>> import torch, l0arm
        >>> from l0arm.estimators.comparison import loss_under
        >>> gated = l0arm.sparsify(l0arm.models.MLP((3, 2)), lam=0.0)
        >>> f = loss_under(gated, lambda: gated(torch.ones(1, 3)).sum())
        >>> bool(f(torch.zeros(3)) == gated.model.fc1.bias.sum())
        True
    """
    randomness = SharedRandomness(gated.phi.device)

    def f(z: Tensor) -> Tensor:
        sliced = gated.execution == "sliced" and not z.requires_grad
        draw = Draw(gated.layout, z, sliced=sliced, writes=False)
        with randomness, gated.engine.evaluating(draw):
            return closure().reshape(())

    return f
