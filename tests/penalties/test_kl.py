"""Every divergence against quadrature of its integral."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from l0arm.gates import TruncatedLogNormal
from l0arm.penalties.kl import (
    bottleneck_kl,
    gamma_kl,
    inverse_gamma_kl,
    log_uniform_kl,
    standard_normal_kl,
    truncated_log_normal_kl,
)

Density = Callable[[np.ndarray], np.ndarray]


def normal(cells: int = 400, reach: float = 12.0) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and probabilities of a standard normal (Gauss-Legendre in small cells)."""
    nodes, weights = np.polynomial.legendre.leggauss(10)
    edges = np.linspace(-reach, reach, cells + 1)
    half = np.diff(edges)[:, None] / 2
    x = ((edges[1:] + edges[:-1])[:, None] / 2 + half * nodes).ravel()
    mass = (half * weights).ravel() * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return x, mass


def log_normal_kl(mean: float, variance: float, log_prior: Density) -> float:
    """E[log q - log p] over x = exp(mean + sigma e)."""
    e, mass = normal()
    log_x = mean + math.sqrt(variance) * e
    log_q = -(e**2) / 2 - math.log(2 * math.pi * variance) / 2 - log_x
    return float((log_q - log_prior(log_x)) @ mass)


@pytest.mark.parametrize("scale", [1.0, 1e-5])
@pytest.mark.parametrize(("mean", "variance"), [(-3.0, 0.1), (0.5, 1e-4), (-1.0, 2.0)])
def test_log_normal_to_gamma(mean: float, variance: float, scale: float) -> None:
    def log_gamma(log_x: np.ndarray) -> np.ndarray:
        norm = math.lgamma(0.5) + math.log(scale) / 2
        return -log_x / 2 - np.exp(log_x) / scale - norm

    found = gamma_kl(*torch.tensor([mean, variance], dtype=torch.float64), scale)
    assert found.item() == pytest.approx(log_normal_kl(mean, variance, log_gamma), rel=1e-9)


@pytest.mark.parametrize(("mean", "variance"), [(3.0, 0.1), (0.0, 1e-4), (1.0, 2.0)])
def test_log_normal_to_inverse_gamma(mean: float, variance: float) -> None:
    def log_inverse_gamma(log_x: np.ndarray) -> np.ndarray:
        return -1.5 * log_x - np.exp(-log_x) - math.lgamma(0.5)

    found = inverse_gamma_kl(*torch.tensor([mean, variance], dtype=torch.float64))
    assert found.item() == pytest.approx(log_normal_kl(mean, variance, log_inverse_gamma), rel=1e-9)


@pytest.mark.parametrize(("mean", "log_variance"), [(0.0, 0.0), (0.3, -9.0), (-2.0, 1.0)])
def test_normal_to_standard_normal(mean: float, log_variance: float) -> None:
    e, mass = normal()
    x = mean + math.exp(log_variance / 2) * e
    expected = (-(e**2) / 2 - log_variance / 2 + x**2 / 2) @ mass
    found = standard_normal_kl(*torch.tensor([mean, log_variance], dtype=torch.float64))
    assert found.item() == pytest.approx(float(expected), abs=1e-9)


@pytest.mark.parametrize(("mean", "log_variance"), [(1.0, -9.0), (0.3, -1.0), (-2.0, 1.0)])
def test_normal_to_the_best_centred_normal(mean: float, log_variance: float) -> None:
    e, mass = normal()
    x = mean + math.exp(log_variance / 2) * e

    def divergence(log_xi: float) -> float:
        log_q = -(e**2) / 2 - log_variance / 2
        return float((log_q + x**2 / (2 * math.exp(log_xi)) + log_xi / 2) @ mass)

    best = math.log(mean**2 + math.exp(log_variance))
    found = bottleneck_kl(*torch.tensor([mean, log_variance], dtype=torch.float64)).item()
    assert found == pytest.approx(divergence(best), rel=1e-9)
    assert all(found < divergence(best + away) for away in (-0.1, -1e-3, 1e-3, 0.1))


def test_the_price_of_a_unit_that_is_only_noise_is_0() -> None:
    mean = torch.tensor([0.0, 1e-6], requires_grad=True)
    price = bottleneck_kl(mean, torch.zeros(2))
    price.sum().backward()
    assert torch.allclose(price, torch.tensor([0.0, 5e-13]), atol=1e-15)
    assert torch.all(mean.grad.isfinite())


def true_log_uniform_kl(log_alpha: float) -> float:
    """-log(alpha)/2 + E log|1 + sqrt(alpha) e|, shifted to 0 at infinite alpha.

    The logarithm's singularity is integrated by cells that shrink towards it.
    """
    sigma = math.exp(log_alpha / 2)
    nodes, weights = np.polynomial.legendre.leggauss(10)
    away = np.concatenate([[0.0], np.geomspace(1e-9, 60.0, 2000)])
    edges = np.unique(np.concatenate([-1 / sigma - away, -1 / sigma + away]))
    edges = np.unique(np.clip(np.concatenate([edges, np.linspace(-12, 12, 400)]), -12, 12))
    half = np.diff(edges)[:, None] / 2
    e = ((edges[1:] + edges[:-1])[:, None] / 2 + half * nodes).ravel()
    mass = (half * weights).ravel() * np.exp(-(e**2) / 2) / math.sqrt(2 * math.pi)
    at_infinity = -(math.log(2) + np.euler_gamma) / 2  # E log|e|
    return float(np.log(np.abs(1 + sigma * e)) @ mass - math.log(sigma) - at_infinity)


@pytest.mark.parametrize("log_alpha", np.linspace(-8, 8, 33).tolist())
def test_the_fit_of_sparse_vd_is_within_its_stated_error(log_alpha: float) -> None:
    found = log_uniform_kl(torch.tensor(log_alpha, dtype=torch.float64)).item()
    assert found == pytest.approx(true_log_uniform_kl(log_alpha), abs=0.0095)  # reached at -3.5


@pytest.mark.parametrize(("mu", "log_sigma"), [(0.0, -5.0), (-1.0, -1.0), (-10.0, 1.0), (4.0, 1.0)])
def test_truncated_log_normal_to_log_uniform(mu: float, log_sigma: float) -> None:
    nodes, weights = np.polynomial.legendre.leggauss(20)
    inner = np.clip(mu + math.exp(log_sigma) * np.linspace(-12, 12, 97), -20, 0)
    edges = np.unique(np.concatenate([[-20.0], inner, [0.0]]))
    half = np.diff(edges)[:, None] / 2
    x = ((edges[1:] + edges[:-1])[:, None] / 2 + half * nodes).ravel()
    log_q = -(((x - mu) / math.exp(log_sigma)) ** 2) / 2
    weight = (half * weights).ravel()
    log_q -= math.log(weight @ np.exp(log_q))
    expected = (weight * np.exp(log_q)) @ (log_q + math.log(20))
    phi = torch.tensor([[mu, log_sigma]], dtype=torch.float64)
    found = truncated_log_normal_kl(TruncatedLogNormal()(phi))
    assert found.item() == pytest.approx(float(expected), rel=1e-8)


def test_wide_noise_is_nearly_log_uniform() -> None:
    phi = torch.tensor([[-10.0, math.log(50.0)]], dtype=torch.float64)
    kl = truncated_log_normal_kl(TruncatedLogNormal()(phi)).item()
    assert 0 <= kl < 1e-3


def exact_kl(mu: float, log_sigma: float) -> tuple[float, float, float]:
    """The divergence and its derivatives in mu and log sigma, which are covariances.

    Over w = (x - c) / sigma, c the point of [-20, 0] nearest to mu: with v = (c - mu) / sigma,
    (x - mu)^2 / sigma^2 = 2 v w + w^2 but for a constant, and nothing cancels.
    """
    sigma, c = math.exp(log_sigma), min(max(mu, -20.0), 0.0)
    v, reach = (c - mu) / sigma, 60 / max(1.0, abs(c - mu) / sigma)
    low, high = max((-20 - c) / sigma, -reach), min(-c / sigma, reach)
    nodes, weights = np.polynomial.legendre.leggauss(20)
    edges = np.linspace(low, high, 401)
    half = np.diff(edges)[:, None] / 2
    w = ((edges[1:] + edges[:-1])[:, None] / 2 + half * nodes).ravel()
    square = 2 * v * w + w**2
    mass = (half * weights).ravel() * np.exp(-square / 2)
    total = mass.sum()
    mass /= total
    centred = square - square @ mass
    value = math.log(20) - square @ mass / 2 - math.log(total) - log_sigma
    in_mu = math.fsum(centred * w * mass)  # about 0 for small sigma, and divided by it
    return value, -in_mu / (2 * sigma), -(centred**2) @ mass / 2


def kl_with_gradient(mu: float, log_sigma: float, dtype: torch.dtype) -> list[float]:
    phi = torch.tensor([[mu, log_sigma]], dtype=dtype, requires_grad=True)
    kl = truncated_log_normal_kl(TruncatedLogNormal()(phi))
    kl.sum().backward()
    return [kl.item(), *phi.grad[0].tolist()]


def test_the_oracle_of_the_gradient_against_finite_differences() -> None:
    h = 1e-5
    for mu, log_sigma in [(-1.0, -1.0), (3.0, 0.5), (-10.0, 2.0)]:
        _, *gradient = exact_kl(mu, log_sigma)
        in_mu = (exact_kl(mu + h, log_sigma)[0] - exact_kl(mu - h, log_sigma)[0]) / (2 * h)
        in_sigma = (exact_kl(mu, log_sigma + h)[0] - exact_kl(mu, log_sigma - h)[0]) / (2 * h)
        assert gradient == pytest.approx([in_mu, in_sigma], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("log_sigma", [-20.0, -12.0, -5.0, -3.0, -1.5, -0.5, 0.0, 1.0, 2.5, 5.0])
def test_the_gradient_of_truncated_log_normal_to_log_uniform(log_sigma: float) -> None:
    """Over all that mu may be, with the neighbourhood of both ends of the support."""
    sigma = math.exp(log_sigma)
    far = [-20.0, -19.0, -10.0, -1.0, -0.1, 0.0, 1e-6, 0.1, 0.5, 1.0, 2.0, 5.0]
    near = [sigma * t for t in (-29.0, -3.0, 0.5, 3.0, 10.0, 29.9, 30.1, 40.0, 200.0)]
    for mu in sorted({*far, *(m for m in near if -20 <= m <= 5)}):
        expected = exact_kl(mu, log_sigma)
        found = kl_with_gradient(mu, log_sigma, torch.float64)
        assert found == pytest.approx(expected, rel=1e-7, abs=1e-8), mu
        rounded = float(torch.tensor(mu)), float(torch.tensor(log_sigma))
        single = kl_with_gradient(*rounded, torch.float32)
        assert single == pytest.approx(exact_kl(*rounded), rel=1e-6, abs=1e-8), mu


@pytest.mark.parametrize(
    ("mu", "slope"), [(0.5, 1.99855), (1.0, 0.99982), (2.0, 0.49998), (5.0, 0.2)]
)
def test_far_out_the_divergence_is_that_of_an_exponential(mu: float, slope: float) -> None:
    """Of rate mu / sigma^2: its slopes are 1 / mu - 4 sigma^2 / mu^3 and about -2."""
    _, in_mu, in_log_sigma = kl_with_gradient(mu, -5.0, torch.float32)
    assert in_mu == pytest.approx(slope, abs=2e-5)
    assert in_log_sigma == pytest.approx(-2, abs=1e-3)
