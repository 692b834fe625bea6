"""Gate functions: their values, derivatives and inverses, and invalid options."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from l0arm.gates import CustomGate, GateFunction, HardSigmoid, ScaledSigmoid
from l0arm.gates.functions import as_gate_function


def gumbel(phi: Tensor) -> Tensor:
    """exp(-exp(-phi)): a distribution function with g(-phi) != 1 - g(phi)."""
    return torch.exp(-torch.exp(-phi))


def derivative(g: Callable[[Tensor], Tensor], phi: Tensor) -> Tensor:
    phi = phi.clone().requires_grad_()
    return torch.autograd.grad(g(phi).sum(), phi)[0]


@pytest.fixture
def phi() -> Tensor:
    return torch.linspace(-0.4, 0.4, 9, dtype=torch.float64)


@pytest.mark.parametrize("k", [1.0, 7.0, 20.0])
def test_scaled_sigmoid_is_eq_11(k: float, phi: Tensor) -> None:
    torch.testing.assert_close(ScaledSigmoid(k)(phi), 1 / (1 + torch.exp(-k * phi)))


@pytest.mark.parametrize("k", [1.0, 7.0, 20.0])
def test_scaled_sigmoid_has_derivative_k_p_one_minus_p(k: float, phi: Tensor) -> None:
    p = ScaledSigmoid(k)(phi)
    torch.testing.assert_close(derivative(ScaledSigmoid(k), phi), k * p * (1 - p))


def test_hard_sigmoid_is_eq_12() -> None:
    phi = torch.tensor([-0.5, -0.25, 0.0, 0.25, 0.5])
    assert HardSigmoid(k=7)(phi).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert HardSigmoid(k=3.5)(phi).tolist() == [0.25, 0.375, 0.5, 0.625, 0.75]


def test_hard_sigmoid_is_exactly_0_and_1_outside() -> None:
    assert HardSigmoid(7)(torch.tensor([-100.0, -0.51, 0.51, 100.0])).tolist() == [0, 0, 1, 1]


def test_hard_sigmoid_has_derivative_k_over_7_inside_and_0_outside() -> None:
    slope = derivative(HardSigmoid(k=14), torch.tensor([-1.0, -0.1, 0.0, 0.1, 1.0]))
    assert slope.tolist() == [0.0, 2.0, 2.0, 2.0, 0.0]


@pytest.mark.parametrize(
    "g", [ScaledSigmoid(1), ScaledSigmoid(7), HardSigmoid(3), HardSigmoid(7), CustomGate(gumbel)]
)
def test_inverse_undoes_g(g: GateFunction, phi: Tensor) -> None:
    torch.testing.assert_close(g.inverse(g(phi)), phi, rtol=0, atol=1e-9)


@pytest.mark.parametrize("gate", [ScaledSigmoid, HardSigmoid])
@pytest.mark.parametrize("k", [0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_not_positive_and_finite_is_refused(gate: type, k: float) -> None:
    with pytest.raises(ValueError, match=rf"k scales phi .* finite number > 0, got {k!r}; .* 7"):
        gate(k)


def test_custom_gate_finds_the_closed_form_inverse() -> None:
    pi = torch.tensor([0.001, 0.2, 0.5, 0.8, 0.999], dtype=torch.float64)
    exact = -torch.log(-torch.log(pi))
    torch.testing.assert_close(CustomGate(gumbel).inverse(pi), exact, rtol=0, atol=1e-9)


def test_custom_inverse_keeps_shape_and_dtype() -> None:
    phi = CustomGate(gumbel).inverse(torch.full((2, 3), 0.5))
    assert (phi.shape, phi.dtype) == ((2, 3), torch.float32)


def test_custom_inverse_outside_the_reach_of_g_names_the_way_out() -> None:
    gate = CustomGate(gumbel, low=-1, high=1)
    with pytest.raises(ValueError, match=r"reaches only \[0\.066, 0\.692\] .* 0\.8 .* low=\.\.\."):
        gate.inverse(torch.tensor(0.8))


def test_custom_inverse_refuses_a_decreasing_g() -> None:
    with pytest.raises(ValueError, match="check that g does not decrease"):
        CustomGate(lambda phi: torch.sigmoid(-phi)).inverse(torch.tensor(0.3))


def test_a_gate_function_stays_itself_and_a_callable_becomes_one() -> None:
    assert as_gate_function(HardSigmoid(7)) == HardSigmoid(7)
    assert as_gate_function(gumbel) == CustomGate(gumbel)
