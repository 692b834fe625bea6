"""The truncated log-normal against Gauss-Legendre quadrature over log z in [-20, 0]."""

import numpy as np
import pytest
import torch
from torch import Tensor

from l0arm.gates import TruncatedLogNormal, TruncatedLogNormalGates

CASES = [(0.0, -5.0), (-1.0, -1.0), (-3.0, 0.5), (-10.0, 1.5), (-20.0, 0.0), (4.0, 1.0), (0.0, 2.5)]


def gates(mu: float, log_sigma: float) -> TruncatedLogNormalGates:
    return TruncatedLogNormal()(torch.tensor([[mu, log_sigma]], dtype=torch.float64))


def quadrature(mu: float, log_sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes of log z and their probabilities, in cells a third of sigma wide near mu."""
    sigma = np.exp(log_sigma)
    inner = np.clip(mu + sigma * np.linspace(-12, 12, 73), -20, 0)
    edges = np.unique(np.concatenate([[-20.0], inner, np.linspace(-20, 0, 41)]))
    nodes, weights = np.polynomial.legendre.leggauss(20)
    middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    x = (middle[:, None] + half[:, None] * nodes).ravel()
    log_density = -(((x - mu) / sigma) ** 2) / 2
    mass = (half[:, None] * weights).ravel() * np.exp(log_density - log_density.max())
    return x, mass / mass.sum()


@pytest.mark.parametrize("case", [*CASES, (-30.0, 0.0)])  # the last one is all in the tail
def test_mean_and_signal_to_noise_ratio(case: tuple[float, float]) -> None:
    x, mass = quadrature(*case)
    mean = (np.exp(x) * mass).sum()
    variance = (np.exp(x) - mean) ** 2 @ mass
    assert gates(*case).mean.item() == pytest.approx(mean, rel=1e-9)
    assert gates(*case).snr.item() == pytest.approx(mean / np.sqrt(variance), rel=1e-6)


@pytest.mark.parametrize("log_sigma", [np.log(50.0), 5.0])
@pytest.mark.parametrize("mu", [-20.0, -10.0, 0.0, 5.0])
def test_wide_noise_does_not_overflow(mu: float, log_sigma: float) -> None:
    x, mass = quadrature(mu, log_sigma)
    mean = (np.exp(x) * mass).sum()
    variance = (np.exp(x) - mean) ** 2 @ mass
    found = gates(mu, float(log_sigma))
    assert found.mean.item() == pytest.approx(mean, rel=1e-6)
    assert found.snr.item() == pytest.approx(mean / np.sqrt(variance), rel=1e-6)
    assert found.deterministic(0.5).item() == 0.0


def test_infinite_noise_is_log_uniform() -> None:
    snr = gates(0.0, 5.0).snr.item()  # E z = 1/20, E z^2 = 1/40 for a log-uniform z
    assert snr == pytest.approx((1 / 20) / np.sqrt(1 / 40 - 1 / 400), rel=0.01)


@pytest.mark.parametrize("case", CASES[:-1])
def test_draws_have_the_mean(case: tuple[float, float]) -> None:
    u = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    found = gates(*case)
    assert found.at(u).mean().item() == pytest.approx(found.mean.item(), rel=2e-3)
    assert float(found.at(u).max()) <= 1.0


def test_a_draw_is_differentiated_in_mu_and_log_sigma() -> None:
    phi = torch.tensor([[-1.0, -1.0], [-2.0, 0.3]], dtype=torch.float64, requires_grad=True)
    u = torch.tensor([0.3, 0.8], dtype=torch.float64)

    def draw(phi: Tensor) -> Tensor:
        return TruncatedLogNormal()(phi).at(u)

    assert torch.autograd.gradcheck(draw, (phi,))


def test_gates_with_more_noise_than_signal_are_pruned() -> None:
    phi = torch.tensor([[-3.0, -2.0], [-3.0, 1.0], [0.0, -5.0]])
    found = TruncatedLogNormal()(phi)
    assert (found.snr > 1).tolist() == [True, False, True]
    assert found.deterministic(0.5).tolist() == pytest.approx([0.0502, 0.0, 0.9946], abs=1e-4)
    assert found.open_probability.tolist() == [1.0, 0.0, 1.0]


def test_a_gate_concentrated_near_0_is_pruned_too() -> None:
    found = gates(-20.0, -8.0)
    assert found.snr.item() > 100
    assert found.deterministic(0.5).item() == 0.0


def test_gates_start_nearly_open() -> None:
    start = TruncatedLogNormal()(TruncatedLogNormal().initial(torch.full((4,), 0.5)))
    assert start.phi.shape == (4, 2)
    assert start.snr.min().item() > 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_in_the_tail_a_gate_is_open(dtype: torch.dtype) -> None:
    """log z is exponential of rate r = mu / sigma^2 below 0: E z^n = r / (r + n), nearly."""
    for mu, log_sigma in [(5.0, -5.0), (1.0, -3.0), (5.0, -20.0), (1e-6, -20.0), (5.0, -1.8)]:
        found = TruncatedLogNormal()(torch.tensor([[mu, log_sigma]], dtype=dtype))
        rate = mu / np.exp(2 * log_sigma)
        assert found.mean.item() == pytest.approx(rate / (rate + 1), rel=3e-5)
        assert found.deterministic(0.5).item() == pytest.approx(rate / (rate + 1), rel=3e-5)
    assert gates(5.0, -3.0).snr.item() == pytest.approx(5 * np.exp(6), rel=1e-3)


@pytest.mark.parametrize("log_sigma", [-4.0, -3.0])
def test_the_moments_do_not_jump_where_the_tail_begins(log_sigma: float) -> None:
    below, above = (gates(t * np.exp(log_sigma), log_sigma) for t in (29.9999, 30.0001))
    assert below.mean.item() == pytest.approx(above.mean.item(), rel=1e-6)
    assert below.snr.item() == pytest.approx(above.snr.item(), rel=1e-4)
