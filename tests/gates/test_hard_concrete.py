"""Hard concrete gates against quadrature over their noise and against samples."""

import math

import pytest
import torch
from torch import Tensor

from l0arm.gates import HardConcrete

LOG_ALPHAS = torch.tensor([-4.6, -2.0, 0.0, 1.5, 4.6], dtype=torch.float64)


def grid(points: int = 200_001) -> Tensor:
    """Middles of equal cells of (0, 1): the mean over them integrates over u."""
    return (torch.arange(points, dtype=torch.float64) + 0.5) / points


@pytest.mark.parametrize("log_alpha", LOG_ALPHAS.tolist())
def test_the_closed_forms_are_the_fractions_of_the_noise(log_alpha: float) -> None:
    gates = HardConcrete()(torch.tensor([log_alpha], dtype=torch.float64))
    z = gates.at(grid())
    assert gates.open_probability.item() == pytest.approx((z > 0).double().mean().item(), abs=1e-5)
    assert gates.full_probability.item() == pytest.approx((z == 1).double().mean().item(), abs=1e-5)


def test_the_published_constants() -> None:
    gates = HardConcrete()(torch.zeros(1, dtype=torch.float64))
    assert gates.open_probability.item() == pytest.approx(1 / (1 + 11 ** (-2 / 3)), abs=1e-12)
    assert gates.open_probability.item() == pytest.approx(0.8318, abs=5e-5)
    assert gates.full_probability.item() == pytest.approx(1 - 0.8318, abs=5e-5)  # by symmetry at 0


def test_samples_agree_with_the_closed_forms() -> None:
    gates = HardConcrete()(torch.full((200_000,), -1.0))
    z = gates.sample(torch.Generator().manual_seed(0))
    error = math.sqrt(0.25 / 200_000)
    for share, closed in ((z > 0, gates.open_probability), (z == 1, gates.full_probability)):
        assert abs(share.float().mean().item() - closed[0].item()) < 4 * error


def test_the_pathwise_derivative_of_the_mean_is_the_slope_of_the_integral() -> None:
    phi, u, step = LOG_ALPHAS.clone().requires_grad_(), grid(20_001), 1e-3
    mean = torch.stack([HardConcrete()(p[None]).at(u).mean() for p in phi])
    (slope,) = torch.autograd.grad(mean.sum(), phi)
    with torch.no_grad():
        above, below = (
            torch.stack([HardConcrete()(p[None] + d).at(u).mean() for p in phi])
            for d in (step, -step)
        )
    torch.testing.assert_close(slope, (above - below) / (2 * step), atol=1e-4, rtol=0)


def test_a_closed_gate_has_no_derivative_so_its_unit_can_be_dropped() -> None:
    phi = torch.zeros(3, requires_grad=True)
    z = HardConcrete()(phi).at(torch.tensor([0.01, 0.5, 0.99]))
    assert z.tolist() == [0.0, 0.5, 1.0]
    z.sum().backward()
    assert phi.grad is not None
    assert (phi.grad != 0).tolist() == [False, True, False]


def test_a_gate_is_pruned_from_logit_of_one_twelfth_on() -> None:
    edge = math.log(1 / 11)  # sigmoid = 1/12: stretched to exactly 0
    z = HardConcrete()(torch.tensor([edge - 1e-4, edge + 1e-4, 0.0, 9.0])).deterministic(0.5)
    assert z[0] == 0
    assert z[1] > 0
    assert z[2:].tolist() == [0.5, 1.0]


def test_gates_start_at_the_logit_of_the_mean() -> None:
    phi = HardConcrete().initial(torch.full((5000,), 0.8), torch.Generator().manual_seed(0))
    assert phi.mean().item() == pytest.approx(math.log(4), abs=1e-3)
    assert phi.std().item() == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("wrong", [{"beta": 0.0}, {"gamma": 0.1}, {"zeta": 1.0}])
def test_constants_without_exact_zeros_and_ones_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"beta > 0, gamma < 0 and zeta > 1"):
        HardConcrete(**wrong)
