"""Bernoulli gates: draws, the gates at test time (Eq. 14), and initialisation by probability."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from l0arm.gates import Bernoulli, BernoulliGates, HardSigmoid, ScaledSigmoid

FUNCTIONS = {
    "sigmoid": ScaledSigmoid(7),
    "sigmoid-1": ScaledSigmoid(1),
    "hard": HardSigmoid(7),
    "hard-2": HardSigmoid(2),
    "callable": lambda phi: torch.exp(-torch.exp(-phi)),
}
every_function = pytest.mark.parametrize("g", FUNCTIONS.values(), ids=FUNCTIONS)


def gates_at(*probs: float) -> BernoulliGates:
    pi = torch.tensor(probs)
    return BernoulliGates(torch.logit(pi), pi)


def initial_probs(g: Callable[[Tensor], Tensor], mean: float, gates: int = 20_000) -> Tensor:
    return g(Bernoulli(g).initial(torch.full((gates,), mean)))


def test_probs_carry_the_graph_to_phi() -> None:
    phi = torch.zeros(2, requires_grad=True)
    Bernoulli(ScaledSigmoid(7))(phi).probs.sum().backward()
    assert phi.grad.tolist() == [7 / 4, 7 / 4]


def test_a_gate_is_open_with_probability_pi() -> None:
    gates = gates_at(0.1, 0.9)
    assert gates.open_probability is gates.probs


def test_a_draw_is_u_below_pi() -> None:
    pi = torch.rand(100)
    z = BernoulliGates(pi, pi).sample(torch.Generator().manual_seed(3))
    u = torch.rand(100, generator=torch.Generator().manual_seed(3))
    assert torch.equal(z, (u < pi).float())  # Eq. 8


def test_a_saturated_gate_never_draws_the_other_value() -> None:
    pi = torch.tensor([0.0, 1.0]).expand(10_000, 2)
    assert torch.equal(BernoulliGates(pi, pi).sample(), pi)


def test_a_draw_has_no_graph() -> None:
    phi = torch.zeros(2, requires_grad=True)
    assert not Bernoulli()(phi).sample().requires_grad


def test_at_test_time_a_gate_up_to_tau_is_0_and_above_it_its_mean() -> None:
    zbar = gates_at(0.25, 0.5, 0.75).deterministic(0.5)
    assert zbar.tolist() == [0.0, 0.0, 0.75]  # Eq. 14


def test_every_gate_can_have_a_tau_of_its_own() -> None:
    zbar = gates_at(0.25, 0.5, 0.75).deterministic(torch.tensor([0.125, 0.75, 0.75]))
    assert zbar.tolist() == [0.25, 0.0, 0.0]


@every_function
@pytest.mark.parametrize("mean", [0.5, 0.7, 0.8])
def test_initial_probabilities_have_the_mean(g: Callable[[Tensor], Tensor], mean: float) -> None:
    assert initial_probs(g, mean).mean().item() == pytest.approx(mean, abs=3e-4)  # 4 std errors


@every_function
@pytest.mark.parametrize("mean", [0.5, 0.7, 0.8])
def test_initial_probabilities_spread_by_0_01(g: Callable[[Tensor], Tensor], mean: float) -> None:
    assert initial_probs(g, mean).std().item() == pytest.approx(0.01, rel=0.03)


@pytest.mark.parametrize("mean", [0.5, 0.8])
def test_the_logit_may_spread_by_0_01_instead(mean: float) -> None:
    """As in the authors' code: k phi ~ N(logit(mean), 0.01)."""
    family = Bernoulli(ScaledSigmoid(7.0), spread_of="logit")
    phi = family.initial(torch.full((20_000,), mean), torch.Generator().manual_seed(0))
    assert (7 * phi).std().item() == pytest.approx(0.01, rel=0.03)
    assert (7 * phi).mean().item() == pytest.approx(math.log(mean / (1 - mean)), abs=4e-4)


def test_another_spread_is_refused() -> None:
    with pytest.raises(ValueError, match="spread_of must be 'pi' or 'logit'; got 'phi'"):
        Bernoulli(spread_of="phi")


def test_hard_sigmoid_starts_at_the_given_mean_and_not_at_0_698() -> None:
    """The published code inverts the other sigmoid: 0.8 becomes logit(0.8) / 7 + 1/2 = 0.698."""
    assert initial_probs(HardSigmoid(7), 0.8).mean().item() == pytest.approx(0.8, abs=3e-4)


@every_function
@pytest.mark.parametrize("mean", [1e-3, 0.999])
def test_an_initial_probability_near_0_or_1_is_not_saturated(
    g: Callable[[Tensor], Tensor], mean: float
) -> None:
    pi = initial_probs(g, mean)
    assert 0 < pi.min() <= pi.max() < 1


@pytest.mark.parametrize("mean", [1e-50, 1 - 1e-9])
def test_a_mean_that_rounds_to_an_end_keeps_phi_finite(mean: float) -> None:
    assert Bernoulli().initial(torch.full((100,), mean)).isfinite().all()


def test_a_seed_fixes_the_initial_phi() -> None:
    mean = torch.full((5,), 0.5)
    first, second = (Bernoulli().initial(mean, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, second)
