"""MuProp: unbiased, and without noise if its first-order expansion is the loss itself."""

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

from l0arm.estimators import MuProp


@pytest.mark.parametrize("g", GATES.values(), ids=GATES)
def test_the_mean_over_all_draws_is_the_gradient(g: Callable[[Tensor], Tensor]) -> None:
    gates = gates_of(g)
    pi = gates.probs.detach()
    mean = sum(
        probability(z, pi) * in_phi(MuProp().at(smooth, gates, noise_for(z[0], pi)), gates)
        for z in patterns(1, 3)
    )
    torch.testing.assert_close(mean, gradient(smooth, gates), rtol=0, atol=1e-10)


def test_on_a_linear_loss_no_noise_is_left() -> None:
    slope = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    pi = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64, requires_grad=True)
    for z in patterns(1, 3):
        value = MuProp().at(lambda z: 2.3 + slope @ z, pi, noise_for(z[0], pi))
        torch.testing.assert_close(torch.autograd.grad(value, pi)[0], slope)
