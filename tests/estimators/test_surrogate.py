"""The pair of draws, when the second is evaluated, and the loss with an attached gradient."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from l0arm.estimators import AR, ARM, DisARM, Estimator
from l0arm.estimators._surrogate import (
    antithetic_pair,
    at_least_float32,
    per_probability,
    probabilities,
    uniform_like,
    unmoved,
    with_gradient,
)
from l0arm.gates import HardSigmoid, ScaledSigmoid

pairs = pytest.mark.parametrize("estimator", [ARM(), DisARM()], ids=["arm", "disarm"])
AGREE, DIFFER = torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.05])  # u, for gates open at 0.9
every_pi = pytest.mark.parametrize("p", [0.0, 0.002, 0.3, 0.5, 0.7, 0.998, 1.0])


@every_pi
@pytest.mark.parametrize("which", [0, 1])
def test_both_draws_are_bernoulli(p: float, which: int, integral: Callable[..., Tensor]) -> None:
    pi = torch.tensor([p], dtype=torch.float64)
    mean = integral(lambda u: antithetic_pair(u, pi)[which], pi)
    assert mean.item() == pytest.approx(p, abs=1e-12)


@every_pi
def test_the_draws_differ_with_probability_2_min_p(
    p: float, integral: Callable[..., Tensor]
) -> None:
    pi = torch.tensor([p], dtype=torch.float64)

    def differ(u: Tensor) -> Tensor:
        z, z_anti = antithetic_pair(u, pi)
        return (z != z_anti).double()

    assert integral(differ, pi).item() == pytest.approx(2 * min(p, 1 - p), abs=1e-12)


def test_a_saturated_gate_has_one_value_even_at_u_0() -> None:
    pi = torch.tensor([0.0, 1.0])
    for draw in antithetic_pair(torch.zeros(2), pi):
        assert torch.equal(draw, pi)


def test_draws_on_the_grid_of_float32_are_equally_often_open() -> None:
    u = torch.arange(2**12) / 2**12  # torch.rand yields multiples of 2^-24 in [0, 1): likewise
    z, z_anti = antithetic_pair(u, torch.tensor(3 / 8))
    assert z.mean().item() == z_anti.mean().item() == 3 / 8


def test_the_second_draw_is_that_of_eq_9_for_antithetic_g_only() -> None:
    """Eq. 9 has 1[u > g(-phi)]. For g = exp(-exp(-phi)), this is no draw from Ber(g(phi))."""
    phi = torch.tensor([-0.7, 0.0, 0.4, 1.5], dtype=torch.float64)
    u = torch.linspace(0, 1, 4002, dtype=torch.float64)[1:-1, None]  # no u lies on an edge

    def printed(g: Callable[[Tensor], Tensor]) -> Tensor:
        return (u > g(-phi)).double()

    def here(g: Callable[[Tensor], Tensor]) -> Tensor:
        return antithetic_pair(u.expand(-1, 4), g(phi).expand(4000, 4))[1]

    for antithetic in (ScaledSigmoid(7.0), HardSigmoid(3.0)):
        assert torch.equal(printed(antithetic), here(antithetic))

    def gumbel(phi: Tensor) -> Tensor:
        return torch.exp(-torch.exp(-phi))

    torch.testing.assert_close(here(gumbel).mean(0), gumbel(phi), atol=3e-4, rtol=0)
    assert torch.all((printed(gumbel).mean(0) - gumbel(phi)).abs() > 0.05)


def test_the_draws_have_no_graph() -> None:
    draws = antithetic_pair(torch.rand(3), torch.rand(3, requires_grad=True))
    assert [z.requires_grad for z in draws] == [False, False]


def test_an_attached_gradient_changes_no_value_and_adds_to_its_own() -> None:
    x = torch.tensor([0.3, 0.7], requires_grad=True)
    value = (x * x).sum()
    attached = with_gradient(value, of=x, grad=torch.tensor([10.0, 20.0]))
    attached.backward()
    assert attached.item() == value.item()
    torch.testing.assert_close(x.grad, torch.tensor([10.6, 21.4]))


def test_an_attached_gradient_is_scaled_with_the_loss_and_can_be_differentiated() -> None:
    scale = torch.tensor(3.0, requires_grad=True)
    x = torch.tensor([0.3, 0.7], requires_grad=True)
    attached = scale * with_gradient(torch.tensor(5.0), of=x, grad=torch.tensor([10.0, 20.0]))
    (gradient,) = torch.autograd.grad(attached, x, create_graph=True)
    assert gradient.tolist() == [30.0, 60.0]
    assert torch.autograd.grad(gradient.sum(), scale)[0].item() == 30.0


def test_an_attached_gradient_belongs_to_every_entry_of_a_value() -> None:
    x = torch.tensor([0.3, 0.7], requires_grad=True)
    attached = with_gradient(torch.ones(2), of=x, grad=torch.tensor([10.0, 20.0]))
    assert torch.autograd.grad(attached[1], x)[0].tolist() == [10.0, 20.0]


def test_equal_draws_give_the_gates_a_gradient_of_zeros_and_the_loss_its_own() -> None:
    """Zeros, not None: Adam then goes on with the moments of phi."""
    x, probs = torch.tensor(0.3, requires_grad=True), torch.rand(3, requires_grad=True)
    unmoved(x * x, probs).backward()
    assert x.grad is not None
    assert x.grad.item() == pytest.approx(0.6)
    assert probs.grad is not None
    assert torch.equal(probs.grad, torch.zeros(3))


def test_a_gate_saturated_within_the_resolution_of_u_gets_0() -> None:
    pi = torch.tensor([0.0, 1e-8, 0.5, 1.0])
    assert per_probability(torch.ones(4), pi).tolist() == [0.0, 0.0, 4.0, 0.0]


def test_a_gate_that_u_still_resolves_gets_its_estimate() -> None:
    pi = torch.tensor([1e-6, 1 - 2**-20])
    expected = 1 / (pi.double() * (1 - pi.double()))
    torch.testing.assert_close(per_probability(torch.ones(2), pi), expected.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_u_is_never_drawn_in_half_precision(dtype: torch.dtype) -> None:
    pi = probabilities(torch.rand(4, dtype=dtype))
    assert pi.dtype == uniform_like(pi, None).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_full_precisions_pass_untouched(dtype: torch.dtype) -> None:
    x = torch.rand(2, dtype=dtype)
    assert at_least_float32(x) is x


def test_gates_without_probabilities_are_refused() -> None:
    with pytest.raises(TypeError, match=r"object has no probs, .* z ~ Ber\(probs\); use Bernoulli"):
        probabilities(object())


def evaluations(estimator: Estimator, u: Tensor) -> list[tuple[list[float], bool]]:
    """The draws at which f is evaluated, in order, each with whether a graph is kept."""
    seen = []

    def f(z: Tensor) -> Tensor:
        seen.append((z.tolist(), torch.is_grad_enabled()))
        return z.sum()

    estimator.at(f, torch.full((2,), 0.9, requires_grad=True), u)
    return seen


@pytest.mark.parametrize("u", [AGREE, DIFFER])
def test_ar_evaluates_once(u: Tensor) -> None:
    assert evaluations(AR(), u) == [([1, 1], True)]


@pairs
def test_the_first_draw_keeps_a_graph_and_the_second_does_not(estimator: Estimator) -> None:
    assert evaluations(estimator, DIFFER) == [([1, 1], True), ([1, 0], False)]


@pairs
def test_draws_that_coincide_are_evaluated_once(estimator: Estimator) -> None:
    assert evaluations(estimator, AGREE) == [([1, 1], True)]


@pairs
def test_among_several_processes_nothing_is_skipped(
    estimator: Estimator, pretend_processes: Callable[[int], None]
) -> None:
    pretend_processes(2)
    assert evaluations(estimator, AGREE) == [([1, 1], True), ([1, 1], False)]


@pairs
def test_a_process_group_of_one_skips(
    estimator: Estimator, pretend_processes: Callable[[int], None]
) -> None:
    pretend_processes(1)
    assert evaluations(estimator, AGREE) == [([1, 1], True)]


@pairs
def test_a_skipped_evaluation_means_gradient_0(estimator: Estimator) -> None:
    pi = torch.full((2,), 0.9, requires_grad=True)
    estimator.at(lambda z: z.sum(), pi, AGREE).backward()
    assert pi.grad.tolist() == [0, 0]
