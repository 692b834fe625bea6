"""What every member of ESTIMATORS promises, whatever it computes."""

import copy
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from l0arm.estimators import ESTIMATORS, Estimator, Exact
from l0arm.estimators.comparison import measure
from l0arm.gates import Bernoulli, BernoulliGates, HardSigmoid, ScaledSigmoid

GATES = {
    "sigmoid": ScaledSigmoid(1),
    "sigmoid-7": ScaledSigmoid(7),
    "hard": HardSigmoid(7),
    "not-antithetic": lambda phi: torch.exp(-torch.exp(-phi)),
}

every_gate = pytest.mark.parametrize("g", GATES.values(), ids=GATES)
SAMPLED = [name for name in ESTIMATORS if name != "exact"]
BINARY = [name for name in SAMPLED if name != "concrete"]  # whose draw is 0 or 1
UNBIASED = [name for name in ESTIMATORS if ESTIMATORS[name]().unbiased]
# Unbiased, with a polynomial of one u per gate as the estimate: the integral is exact. The noise of
# the others is integrated or enumerated in a test of their own.
OF_U = ["ar", "arm", "disarm", "exact", "local-expectation", "muprop", "reinforce"]
REMEMBERING = [name for name in ESTIMATORS if getattr(ESTIMATORS[name](), "state", None)]


@pytest.fixture(params=OF_U)
def integrable(request: pytest.FixtureRequest) -> Estimator:
    return ESTIMATORS[request.param]()


@pytest.fixture(params=sorted(BINARY))
def binary(request: pytest.FixtureRequest) -> Estimator:
    return ESTIMATORS[request.param]()


@pytest.fixture(params=sorted(ESTIMATORS))
def estimator(request: pytest.FixtureRequest) -> Estimator:
    return ESTIMATORS[request.param]()


@pytest.fixture(params=sorted(SAMPLED))
def sampled(request: pytest.FixtureRequest) -> Estimator:
    return ESTIMATORS[request.param]()


class Counting:
    """f(z) = |theta z - 1|^2 + 2.3, and whether each call of it kept a graph."""

    def __init__(self, gates: int = 3, dtype: torch.dtype = torch.float32) -> None:
        self.theta = nn.Parameter(torch.linspace(0.5, 2.0, gates, dtype=dtype))
        self.graphs: list[bool] = []
        self.seen: list[Tensor] = []

    def __call__(self, z: Tensor) -> Tensor:
        self.graphs.append(torch.is_grad_enabled())
        self.seen.append(z)
        return ((self.theta * z).sum() - 1).square() + 2.3


def random_function(bits: int) -> Callable[[Tensor], Tensor]:
    """A loss with an unrelated value at each of the 2^V draws."""
    table = torch.randn((2,) * bits, dtype=torch.float64) + 2.3
    return lambda z: table[tuple(z.long())]


def enumerated(f: Callable[[Tensor], Tensor], pi: Tensor) -> Tensor:
    """E[f(z)], Eq. 6, bit by bit."""
    total = torch.zeros((), dtype=pi.dtype)
    for bits in product((0, 1), repeat=len(pi)):
        weight = torch.ones((), dtype=pi.dtype)
        for bit, p in zip(bits, pi, strict=True):
            weight = weight * (p if bit else 1 - p)
        total = total + weight * f(torch.tensor(bits, dtype=pi.dtype))
    return total


def error_of_the_mean(
    estimator: Estimator,
    f: Callable[[Tensor], Tensor],
    gates: BernoulliGates,
    integral: Callable[..., Tensor],
) -> float:
    """The largest distance between the mean estimate over all u and the gradient in phi."""

    def estimate(u: Tensor) -> Tensor:
        loss = estimator(f, gates) if isinstance(estimator, Exact) else estimator.at(f, gates, u)
        return torch.autograd.grad(loss, gates.phi, retain_graph=True)[0]

    mean = integral(estimate, gates.probs)
    (gradient,) = torch.autograd.grad(enumerated(f, gates.probs), gates.phi)
    return (mean - gradient).abs().max().item()


@every_gate
@pytest.mark.parametrize("bits", [3, 4])
def test_the_mean_over_all_u_is_the_gradient(
    integrable: Estimator, g: Callable[[Tensor], Tensor], bits: int, integral: Callable[..., Tensor]
) -> None:
    phi = (torch.rand(bits, dtype=torch.float64) * 0.8 - 0.4).requires_grad_()
    assert integrable.unbiased
    assert error_of_the_mean(integrable, random_function(bits), Bernoulli(g)(phi), integral) < 1e-10


def test_saturated_gates_leave_the_mean_of_the_others_right(
    integrable: Estimator, integral: Callable[..., Tensor]
) -> None:
    phi = torch.tensor([0.1, -0.9, 0.9], dtype=torch.float64, requires_grad=True)
    gates = Bernoulli(HardSigmoid(7))(phi)  # 0.6, 0 and 1
    assert error_of_the_mean(integrable, random_function(3), gates, integral) < 1e-10


def test_the_biased_ones_say_so() -> None:
    biased = {"concrete", "reinmax", "st-gumbel", "straight-through"}
    assert set(ESTIMATORS) - set(UNBIASED) == biased


@pytest.mark.parametrize("name", sorted(UNBIASED))
def test_the_mean_over_many_calls_is_the_gradient(name: str) -> None:
    """A chi-square test on 3 gates, 600 draws, p = 1e-5 a false alarm (the seed is fixed).

    A bias of 9 standard errors, 0.37 standard deviations of one draw, would be missed
    with a probability below 1e-4.
    """
    pi = torch.tensor([0.3, 0.6, 0.85], dtype=torch.float64)
    steep = torch.tensor([1.0, -1.5, 0.7], dtype=torch.float64)
    f = lambda z: 2.3 + torch.exp((steep * z).sum()) + z[0] * z[1]  # noqa: E731
    leaf = pi.clone().requires_grad_()
    (exact,) = torch.autograd.grad(enumerated(f, leaf), leaf)
    random = torch.Generator().manual_seed(7)
    found = measure(ESTIMATORS[name](), f, pi, 600, random, warmup=50)
    error = found.bias(exact * pi * (1 - pi)).numpy()
    if name == "exact":
        assert abs(error).max() < 1e-12
    else:
        covariance = np.cov(found.estimates.numpy().T) / 600
        assert float(error @ np.linalg.solve(covariance, error)) < 25.9


def test_the_value_is_f_at_the_first_draw(binary: Estimator) -> None:
    f = Counting(50)
    value = binary(f, torch.rand(50, requires_grad=True))
    assert value.item() == f(f.seen[0]).item()
    assert set(f.seen[0].tolist()) == {0.0, 1.0}


def test_the_value_is_a_scalar_with_a_graph(estimator: Estimator) -> None:
    value = estimator(Counting(), torch.rand(3, requires_grad=True))
    assert value.shape == ()
    assert value.requires_grad


def test_theta_gets_the_gradient_of_the_first_evaluation_alone(sampled: Estimator) -> None:
    f = Counting(50)
    sampled(f, torch.rand(50, requires_grad=True)).backward()
    (expected,) = torch.autograd.grad(f(f.seen[0]), f.theta)
    assert torch.equal(f.theta.grad, expected)


def test_theta_gets_the_mean_gradient_from_the_exact_sum() -> None:
    f, pi = Counting(3), torch.tensor([0.2, 0.5, 0.9])
    Exact()(f, pi).backward()
    (expected,) = torch.autograd.grad(enumerated(f, pi), f.theta)
    torch.testing.assert_close(f.theta.grad, expected)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_evaluations_are_as_many_as_announced(name: str) -> None:
    gates = 4 if name == "exact" else 40  # with 40 gates at 1/2, no two draws are equal
    estimator, f = ESTIMATORS[name](), Counting(gates)
    estimator(f, torch.full((gates,), 0.5, requires_grad=True))
    depending = {"exact": 2**4, "local-expectation": 40 + 1, "ugc": estimator.forwards - 1}
    assert len(f.graphs) == depending.get(name, estimator.forwards)


class Passing(torch.autograd.Function):
    """The identity, which counts backward passes."""

    passes = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        Passing.passes += 1
        return slope


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_backward_passes_are_as_many_as_announced(name: str) -> None:
    """REBAR without tuning: second derivatives do not come through here."""
    gates = 4 if name == "exact" else 40
    estimator = ESTIMATORS[name](**({"rate": 0.0} if name == "rebar" else {}))
    theta, before = torch.linspace(-1, 1, gates).requires_grad_(), Passing.passes
    estimator(
        lambda z: Passing.apply((theta * z).sum()).square(),
        torch.full((gates,), 0.5, requires_grad=True),
    ).backward()
    assert theta.grad is not None
    assert Passing.passes - before == (estimator.backwards or 2**4)


def test_the_derivative_in_closed_gates_is_asked_for_only_where_announced(
    sampled: Estimator,
) -> None:
    f = Counting(40)
    sampled(f, torch.full((40,), 0.5, requires_grad=True))
    assert any(z.requires_grad for z in f.seen) == (not sampled.drops)


def test_the_evaluation_that_keeps_a_graph_comes_first(estimator: Estimator) -> None:
    f = Counting(4)
    estimator(f, torch.full((4,), 0.5, requires_grad=True))
    assert f.graphs == sorted(f.graphs, reverse=True)


def test_a_seed_fixes_value_and_gradient(estimator: Estimator) -> None:
    results = []
    for _ in range(2):
        pi = torch.linspace(0.1, 0.9, 9).requires_grad_()
        value = copy.deepcopy(estimator)(Counting(9), pi, torch.Generator().manual_seed(5))
        value.backward()
        results.append(torch.cat([value.detach()[None], pi.grad]))
    assert torch.equal(*results)


def test_two_seeds_differ(sampled: Estimator) -> None:
    pi = torch.full((50,), 0.5)
    first, second = (
        sampled(Counting(50), pi, torch.Generator().manual_seed(seed)) for seed in (0, 1)
    )
    assert first != second


def test_with_a_generator_the_global_state_stays(estimator: Estimator) -> None:
    before = torch.get_rng_state()
    estimator(Counting(), torch.full((3,), 0.5), torch.Generator().manual_seed(5))
    assert torch.equal(torch.get_rng_state(), before)


def saturated(name: str, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """phi and pi of one live gate between two that are saturated at opposite ends."""
    phi = torch.tensor([-scale, 0.1, scale], dtype=dtype).div(7).requires_grad_()
    return phi, Bernoulli(GATES[name])(phi).probs


SATURATION = [("sigmoid-7", 40.0), ("sigmoid-7", 200.0), ("hard", 7.0)]
every_saturation = pytest.mark.parametrize(("name", "scale"), SATURATION)
every_precision = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@every_saturation
@every_precision
def test_at_saturation_value_and_gradient_are_finite(
    estimator: Estimator, name: str, scale: float, dtype: torch.dtype
) -> None:
    for seed in range(10):
        phi, pi = saturated(name, scale, dtype)
        value = estimator(Counting(3, dtype), pi, torch.Generator().manual_seed(seed))
        value.backward()
        assert torch.cat([value.detach()[None], phi.grad]).isfinite().all()


@every_saturation
@every_precision
def test_a_saturated_gate_gets_no_gradient(
    estimator: Estimator, name: str, scale: float, dtype: torch.dtype
) -> None:
    for seed in range(10):
        phi, pi = saturated(name, scale, dtype)
        estimator(Counting(3, dtype), pi, torch.Generator().manual_seed(seed)).backward()
        assert phi.grad[[0, 2]].abs().max() <= (1e-15 if isinstance(estimator, Exact) else 0.0)


def test_a_live_gate_beside_saturated_ones_does_get_one(estimator: Estimator) -> None:
    phi, pi = saturated("hard", 7.0, torch.float32)
    estimator(Counting(3), pi).backward()
    assert phi.grad[1] != 0


def test_a_loss_in_half_precision_is_widened(estimator: Estimator) -> None:
    pi = torch.full((3,), 0.5, requires_grad=True)
    value = estimator(lambda z: z.sum().bfloat16(), pi)
    value.backward()
    assert value.dtype == pi.grad.dtype == torch.float32


def test_probabilities_in_half_precision_are_widened(estimator: Estimator) -> None:
    f, pi = Counting(), torch.full((3,), 0.5, dtype=torch.bfloat16, requires_grad=True)
    estimator(f, pi).backward()
    assert {z.dtype for z in f.seen} == {torch.float32}
    assert pi.grad.isfinite().all()


def test_float64_stays_float64(estimator: Estimator) -> None:
    value = estimator(Counting(3, torch.float64), torch.full((3,), 0.5, dtype=torch.float64))
    assert value.dtype == torch.float64


def test_without_a_graph_the_value_comes_alone_and_nothing_is_remembered(
    estimator: Estimator,
) -> None:
    before = copy.deepcopy(estimator)
    with torch.no_grad():
        value = estimator(Counting(3), torch.full((3,), 0.5), torch.Generator().manual_seed(1))
    assert not value.requires_grad
    again = estimator(Counting(3), torch.full((3,), 0.5), torch.Generator().manual_seed(2))
    fresh = before(Counting(3), torch.full((3,), 0.5), torch.Generator().manual_seed(2))
    assert torch.equal(again, fresh)


def steps(estimator: Estimator, count: int, random: torch.Generator) -> list[Tensor]:
    """Values and gradients of some calls in a row."""
    found = []
    for _ in range(count):
        pi = torch.linspace(0.1, 0.9, 9).requires_grad_()
        value = estimator(Counting(9), pi, random)
        value.backward()
        found += [value.detach()[None], pi.grad]
    return found


@pytest.mark.parametrize("name", REMEMBERING)
def test_what_is_remembered_goes_on_from_a_saved_state_bit_for_bit(name: str) -> None:
    random = torch.Generator().manual_seed(0)
    first, second = ESTIMATORS[name](), ESTIMATORS[name]()
    steps(first, 3, random)
    second.state.load_state_dict(copy.deepcopy(first.state.state_dict()))
    again = random.clone_state()
    one, other = steps(first, 3, random), steps(second, 3, again)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    fresh = steps(ESTIMATORS[name](), 3, random)
    assert not all(torch.equal(a, b) for a, b in zip(one, fresh, strict=True))


def test_these_remember_something() -> None:
    assert REMEMBERING == ["rebar", "reinforce", "relax"]
