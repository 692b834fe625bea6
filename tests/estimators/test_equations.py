"""The estimates at given noise u, number by number."""

import pytest
import torch
from torch import Tensor

from l0arm.estimators import AR, ARM, DisARM, Estimator

PI = [0.2, 0.6, 0.9]
U = [0.1, 0.7, 0.3]  # first draws open, closed, open; second draws closed, open, open


def f(z: Tensor) -> Tensor:
    return z @ z.new_tensor([1.0, 10.0, 100.0])  # 101 at the first draw, 110 at the second


def logit_gradient(estimator: Estimator) -> Tensor:
    """The estimate of dE[f]/dlogit(pi): autograd returns it divided by pi (1 - pi)."""
    pi = torch.tensor(PI, dtype=torch.float64, requires_grad=True)
    estimator.at(f, pi, torch.tensor(U, dtype=torch.float64)).backward()
    return pi.grad * (pi * (1 - pi)).detach()


def test_arm_is_eq_9() -> None:
    assert logit_gradient(ARM()).tolist() == pytest.approx([9 * -0.4, 9 * 0.2, 9 * -0.2])


def test_ar_is_eq_10() -> None:
    assert logit_gradient(AR()).tolist() == pytest.approx([101 * 0.8, 101 * -0.4, 101 * 0.4])


def test_disarm_is_0_where_the_draws_agree() -> None:
    assert logit_gradient(DisARM()).tolist() == pytest.approx([-9 / 2 * 0.8, 9 / 2 * 0.6, 0])
