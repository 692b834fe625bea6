"""Estimators with several independent draws: the exact mean over all pairs and triples."""

from collections.abc import Callable

import pytest
import torch
from tests.helpers.enumeration import (
    GATES,
    gates_of,
    gradient,
    in_phi,
    noise_for,
    patterns,
    probability,
    smooth,
)
from torch import Tensor

from l0arm.estimators import DoubleCV, Estimator, ReinforceLOO

every_gate = pytest.mark.parametrize("g", GATES.values(), ids=GATES)
CASES = [
    (ReinforceLOO(2), 3),
    (ReinforceLOO(3), 2),
    (DoubleCV(2), 3),
    (DoubleCV(2, a=0.5), 3),
    (DoubleCV(3, a=-2.0), 2),
]


@every_gate
@pytest.mark.parametrize(("estimator", "bits"), CASES, ids=str)
def test_the_mean_over_all_draws_is_the_gradient(
    estimator: Estimator, bits: int, g: Callable[[Tensor], Tensor]
) -> None:
    gates = gates_of(g, [-0.3, 0.05, 0.25][:bits])
    pi = gates.probs.detach()
    mean = sum(
        probability(z, pi) * in_phi(estimator.at(smooth, gates, noise_for(z, pi)), gates)
        for z in patterns(estimator.samples, bits)
    )
    torch.testing.assert_close(mean, gradient(smooth, gates), rtol=0, atol=1e-10)


def test_leave_one_out_by_hand() -> None:
    pi = torch.tensor([0.5, 0.25], dtype=torch.float64, requires_grad=True)
    u = noise_for(torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]).double(), pi)
    f = lambda z: z @ z.new_tensor([1.0, 4.0])  # noqa: E731  losses 1, 0, 5; their mean 2
    ReinforceLOO(3).at(f, pi, u).backward()
    s = [(-1 * 0.5 + -2 * -0.5 + 3 * 0.5) / 2, (-1 * -0.25 + -2 * -0.25 + 3 * 0.75) / 2]
    assert pi.grad.tolist() == pytest.approx([s[0] / 0.25, s[1] / 0.1875])


def test_with_two_draws_each_is_the_baseline_of_the_other() -> None:
    """Two draws: s = (f1 - f2)(z1 - z2) / 2, DisARM without its factor."""
    pi = torch.tensor([0.3, 0.6], dtype=torch.float64, requires_grad=True)
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
    ReinforceLOO(2).at(smooth, pi, noise_for(z, pi)).backward()
    s = (smooth(z[0]) - smooth(z[1])) / 2 * (z[0] - z[1])
    torch.testing.assert_close(pi.grad * pi.detach() * (1 - pi.detach()), s)


def test_on_a_linear_loss_the_double_control_variate_leaves_no_noise() -> None:
    slope = torch.tensor([1.0, -2.0, 3.0])
    for seed in range(5):
        pi = torch.tensor([0.2, 0.5, 0.9], requires_grad=True)
        DoubleCV()(lambda z: 2.3 + slope @ z, pi, torch.Generator().manual_seed(seed)).backward()
        torch.testing.assert_close(pi.grad, slope, rtol=0, atol=1e-5)


def test_a_draw_equal_to_the_first_is_not_evaluated_again() -> None:
    seen: list[list[float]] = []

    def f(z: Tensor) -> Tensor:
        seen.append(z.tolist())
        return z.sum()

    u = torch.tensor([[0.1, 0.9], [0.2, 0.8], [0.1, 0.1]])
    ReinforceLOO(3).at(f, torch.full((2,), 0.5, requires_grad=True), u)
    assert seen == [[1, 0], [1, 1]]


@pytest.mark.parametrize("estimator", [ReinforceLOO, DoubleCV])
@pytest.mark.parametrize("samples", [1, 0, 2.5])
def test_fewer_than_two_draws_are_refused(estimator: type, samples: float) -> None:
    with pytest.raises(ValueError, match=f"samples must be an integer >= 2, got {samples}"):
        estimator(samples=samples)


def test_a_must_be_finite() -> None:
    with pytest.raises(ValueError, match="a must be a finite number, got inf"):
        DoubleCV(a=float("inf"))
