"""The exact estimator: the sum over all draws."""

import pytest
import torch
from torch import Tensor

from l0arm.estimators import Exact
from l0arm.estimators.exact import all_draws


def test_it_is_the_closed_form_of_a_product() -> None:
    pi = torch.tensor([0.3, 0.6, 0.5], requires_grad=True)
    value = Exact()(lambda z: z.prod(), pi)
    value.backward()
    torch.testing.assert_close(value, pi.prod())
    torch.testing.assert_close(pi.grad, torch.tensor([0.3, 0.15, 0.18]))


def test_its_value_is_the_expectation() -> None:
    pi = torch.tensor([0.25, 0.5])
    assert Exact()(lambda z: z.sum().square(), pi).item() == 0.75 + 2 * 0.125


def test_every_draw_occurs_once() -> None:
    draws = all_draws(3, torch.zeros(()))
    assert draws.shape == (8, 3)
    assert {tuple(z) for z in draws.tolist()} == {
        (a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)
    }


@pytest.mark.parametrize(("estimator", "gates"), [(Exact(), 17), (Exact(max_gates=3), 4)])
def test_too_many_gates_are_refused_before_f_is_called(estimator: Exact, gates: int) -> None:
    def f(z: Tensor) -> Tensor:
        raise AssertionError("called")

    message = rf"V <= {estimator.max_gates} gates, got V = {gates}; use 'disarm' or 'arm', or Exact"
    with pytest.raises(ValueError, match=message):
        estimator(f, torch.full((gates,), 0.5))
