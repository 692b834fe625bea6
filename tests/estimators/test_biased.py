"""Straight-through, ReinMax, concrete, ST-Gumbel: their bias has the size that theory predicts."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.helpers.enumeration import (
    GATES,
    expectation,
    gates_of,
    gradient,
    noise_for,
    patterns,
    probability,
    smooth,
)
from torch import Tensor

from l0arm.estimators import Concrete, Estimator, ReinMax, STGumbel, StraightThrough

every_gate = pytest.mark.parametrize("g", GATES.values(), ids=GATES)
A = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
PI = [0.2, 0.6, 0.9]


def multilinear(z: Tensor) -> Tensor:
    return 2.3 + A @ z + 3 * z[0] * z[1] - z[1] * z[2] + z[0] * z[1] * z[2]


def square(z: Tensor) -> Tensor:
    return (A @ z - 0.3) ** 2


def cube(z: Tensor) -> Tensor:
    return (A * z**3).sum()


def mean_of(estimator: Estimator, f: Callable[[Tensor], Tensor], pi: Tensor, of: Tensor) -> Tensor:
    """The mean over all draws: the estimate depends on u through z alone."""
    return sum(
        probability(z, pi.detach())
        * torch.autograd.grad(
            estimator.at(f, pi, noise_for(z[0], pi.detach())), of, retain_graph=True
        )[0]
        for z in patterns(1, len(pi))
    )


def leaf() -> Tensor:
    return torch.tensor(PI, dtype=torch.float64, requires_grad=True)


def exact(f: Callable[[Tensor], Tensor], pi: Tensor) -> Tensor:
    return torch.autograd.grad(expectation(f, pi), pi)[0]


@every_gate
def test_straight_through_is_exact_where_f_is_linear_in_each_gate(
    g: Callable[[Tensor], Tensor],
) -> None:
    gates = gates_of(g)
    mean = mean_of(StraightThrough(), multilinear, gates.probs, gates.phi)
    torch.testing.assert_close(mean, gradient(multilinear, gates), rtol=0, atol=1e-10)


@every_gate
@pytest.mark.parametrize("f", [multilinear, square])
def test_reinmax_is_exact_where_f_is_quadratic_in_each_gate(
    f: Callable[[Tensor], Tensor], g: Callable[[Tensor], Tensor]
) -> None:
    gates = gates_of(g)
    mean = mean_of(ReinMax(), f, gates.probs, gates.phi)
    torch.testing.assert_close(mean, gradient(f, gates), rtol=0, atol=1e-10)


def test_the_bias_of_straight_through_on_a_square() -> None:
    """E[df/dz_j] - (f(1) - f(0)) = a_j^2 (2 pi_j - 1): its sign is the side of 1/2."""
    pi = leaf()
    bias = mean_of(StraightThrough(), square, pi, pi) - exact(square, pi)
    assert bias.tolist() == pytest.approx((A**2 * (2 * pi - 1)).tolist())


def test_the_bias_of_straight_through_and_reinmax_on_a_cube() -> None:
    """The slope is 3 a z^2: its mean is 3 a pi, the trapezium rule gives 3/2 a, the truth is a."""
    pi = leaf()
    straight = mean_of(StraightThrough(), cube, pi, pi)
    assert straight.tolist() == pytest.approx((3 * A * pi).tolist())
    assert mean_of(ReinMax(), cube, pi, pi).tolist() == pytest.approx((1.5 * A).tolist())
    assert exact(cube, pi).tolist() == pytest.approx(A.tolist())


def relaxed_mean(estimator: Estimator, f: Callable[[Tensor], Tensor], p: float) -> float:
    """One gate: the mean of dE/dpi over u, by Gauss-Legendre on both sides of the edge 1 - p."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    total = 0.0
    for low, high in ((0.0, 1 - p), (1 - p, 1.0)):
        for node, weight in zip(nodes, weights, strict=True):
            u = torch.tensor([low + (high - low) * (node + 1) / 2], dtype=torch.float64)
            pi = torch.tensor([p], dtype=torch.float64, requires_grad=True)
            (estimate,) = torch.autograd.grad(estimator.at(f, pi, u), pi)
            total += (high - low) / 2 * weight * estimate.item()
    return total


def smoothed(f: Callable[[Tensor], Tensor], p: float, temperature: float) -> float:
    """E[f(y)], y the relaxed gate, by the midpoint rule on the line of logistic noise."""
    x = torch.linspace(-40, 40, 2001, dtype=torch.float64)
    density = torch.sigmoid(x) * torch.sigmoid(-x) * (80 / 2000)
    y = torch.sigmoid((torch.logit(torch.tensor(p, dtype=torch.float64)) + x) / temperature)
    return float((torch.stack([f(value[None]) for value in y]) * density).sum())


@pytest.mark.parametrize("temperature", [2 / 3, 0.3])
@pytest.mark.parametrize("p", [0.3, 0.9])
def test_concrete_is_the_gradient_of_the_relaxed_expectation(p: float, temperature: float) -> None:
    found = relaxed_mean(Concrete(temperature), smooth, p)
    h = 1e-4
    expected = (smoothed(smooth, p + h, temperature) - smoothed(smooth, p - h, temperature)) / (
        2 * h
    )
    assert found == pytest.approx(expected, rel=1e-3)
    one, zero = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    assert abs(found / (smooth(one) - smooth(zero)).item() - 1) > 0.02  # biased


def test_the_bias_of_concrete_vanishes_with_the_temperature() -> None:
    linear = lambda z: z.sum()  # noqa: E731  the gradient in pi is 1
    biases = [abs(relaxed_mean(Concrete(t), linear, 0.3) - 1) for t in (1.0, 0.5, 0.25)]
    assert biases[0] > 2 * biases[1] > 4 * biases[2] > 0


def test_on_a_linear_loss_st_gumbel_and_concrete_agree() -> None:
    linear = lambda z: z.sum()  # noqa: E731
    for u in (0.1, 0.5, 0.9):
        estimates = []
        for estimator in (Concrete(), STGumbel()):
            pi = torch.tensor([0.3], requires_grad=True)
            estimator.at(linear, pi, torch.tensor([u])).backward()
            estimates.append(pi.grad)
        assert torch.equal(*estimates)


@pytest.mark.parametrize("temperature", [2 / 3, 0.3])
@pytest.mark.parametrize("p", [0.3, 0.9])
def test_the_mean_of_st_gumbel(p: float, temperature: float) -> None:
    """Slopes of f at 0 and 1, in the shares that y (1 - y) / temperature has on each side."""
    found = relaxed_mean(STGumbel(temperature), smooth, p)
    x = torch.linspace(-40, 40, 400_001, dtype=torch.float64)
    zeta = x + torch.logit(torch.tensor(p, dtype=torch.float64))
    y = torch.sigmoid(zeta / temperature)
    weight = torch.sigmoid(x) * torch.sigmoid(-x) * (80 / 400_000) * y * (1 - y) / temperature
    slopes = [slope_at(z) for z in (0.0, 1.0)]
    shares = [weight[zeta < 0].sum(), weight[zeta > 0].sum()]
    expected = sum(a * b for a, b in zip(slopes, shares, strict=True)) / (p * (1 - p))
    assert found == pytest.approx(float(expected), rel=1e-3)
    one, zero = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    assert abs(found / (smooth(one) - smooth(zero)).item() - 1) > 0.02  # biased


def slope_at(z: float) -> float:
    leaf = torch.tensor([z], dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(smooth(leaf), leaf)[0].item()


def test_cold_st_gumbel_is_the_trapezium_rule_like_reinmax() -> None:
    """So its bias vanishes with the temperature only if f is quadratic in each gate."""
    cubic = lambda z: (z**3).sum()  # noqa: E731  a slope of 0 and 3, a difference of 1
    quadratic = lambda z: (z**2).sum()  # noqa: E731  a slope of 0 and 2, a difference of 1
    for f, limit in ((cubic, 1.5), (quadratic, 1.0)):
        distances = [abs(relaxed_mean(STGumbel(t), f, 0.3) - limit) for t in (1.0, 0.5, 0.25, 0.1)]
        assert distances == sorted(distances, reverse=True)
        assert distances[-1] < 0.1


def test_st_gumbel_takes_the_slope_at_the_binary_draw() -> None:
    pi = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    u = torch.tensor([0.9], dtype=torch.float64)
    STGumbel(temperature=0.5).at(lambda z: (z**2).sum(), pi, u).backward()
    y = torch.sigmoid((torch.logit(pi) + torch.logit(u)) / 0.5)
    expected = 2 * y * (1 - y) / 0.5 / (pi * (1 - pi))
    torch.testing.assert_close(pi.grad, expected.detach())


def test_the_open_gates_of_st_gumbel_are_bernoulli() -> None:
    seen = []
    u = torch.arange(1000, dtype=torch.float64).add(0.5).div(1000)
    STGumbel().at(lambda z: seen.append(z) or z.sum(), torch.full((1000,), 0.3).double(), u)
    assert seen[0].mean().item() == pytest.approx(0.3)


def test_a_saturated_gate_is_not_relaxed() -> None:
    seen = []
    Concrete()(lambda z: seen.append(z) or z.sum(), torch.tensor([0.0, 1.0, 0.5]))
    assert seen[0][:2].tolist() == [0, 1]
    assert 0 < seen[0][2] < 1


@pytest.mark.parametrize("estimator", [Concrete, STGumbel])
@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf")])
def test_a_temperature_is_positive(estimator: type, temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be a finite number > 0; got"):
        estimator(temperature)
