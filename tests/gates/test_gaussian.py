"""Gaussian gates: moments of the draws, and pruning by log alpha."""

import math

import pytest
import torch

from l0arm.gates import Gaussian


def test_draws_have_mean_and_variance() -> None:
    phi = torch.tensor([2.0, math.log(0.25), 0.0]).expand(100_000, 3)
    z = Gaussian()(phi).sample(torch.Generator().manual_seed(0))
    assert z.mean().item() == pytest.approx(2.0, abs=4 * 0.5 / math.sqrt(1e5))
    assert z.var().item() == pytest.approx(0.25, rel=0.02)


def test_a_draw_is_differentiable_in_mu_and_log_variance() -> None:
    phi = torch.tensor([[1.0, math.log(4.0), 0.0]], requires_grad=True)
    z = Gaussian()(phi).rsample(torch.Generator().manual_seed(0))
    z.backward()
    noise = (z.item() - 1.0) / 2.0
    assert phi.grad is not None
    assert phi.grad[0].tolist() == pytest.approx([1.0, noise, 0.0])  # dsigma/dlog sigma^2 = sigma/2


def test_log_alpha_is_compared_with_each_gates_own_threshold() -> None:
    phi = torch.tensor([[0.5, -4.0, -2.0], [0.5, -4.0, -3.0], [-0.5, -4.0, -2.0]])
    gates = Gaussian()(phi)  # log alpha = -4 - 2 log 0.5 = -2.61
    torch.testing.assert_close(gates.log_alpha, torch.full((3,), -4 - 2 * math.log(0.5)))
    assert gates.deterministic(0.5).tolist() == [0.5, 0.0, -0.5]
    assert gates.open_probability.tolist() == [1.0, 0.0, 1.0]


def test_probs_show_log_alpha_from_1_to_0() -> None:
    log_alpha = torch.tensor([-12.0, -9.0, -3.5, 2.0, 5.0])
    phi = torch.stack([torch.ones(5), log_alpha, torch.zeros(5)], dim=1)
    assert Gaussian()(phi).probs.tolist() == pytest.approx([1.0, 1.0, 0.5, 0.0, 0.0], abs=1e-6)


def test_gates_start_open_with_hardly_any_noise() -> None:
    phi = Gaussian(-2.0).initial(torch.full((5000,), 0.5), torch.Generator().manual_seed(0))
    assert phi.mean(0).tolist() == pytest.approx([1.0, -9.0, -2.0], abs=1e-3)
    assert phi.std(0).tolist() == pytest.approx([0.01, 0.01, 0.0], abs=1e-3)
