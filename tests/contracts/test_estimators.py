"""What every member of ESTIMATORS promises, whatever it computes."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from l0arm.estimators import ESTIMATORS, Estimator, Exact
from l0arm.gates import Bernoulli, BernoulliGates, HardSigmoid, ScaledSigmoid
from l0arm.testing._estimator import ESTIMATOR_CHECKS

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
REMEMBERING = [name for name in ESTIMATORS if ESTIMATORS[name]().state is not None]


@pytest.mark.parametrize("check", ESTIMATOR_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_the_contract(name: str, check: Callable[..., None]) -> None:
    check(ESTIMATORS[name])


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


def test_the_value_is_f_at_the_first_draw(binary: Estimator) -> None:
    f = Counting(50)
    value = binary(f, torch.rand(50, requires_grad=True))
    assert value.item() == f(f.seen[0]).item()
    assert set(f.seen[0].tolist()) == {0.0, 1.0}


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


def test_two_seeds_differ(sampled: Estimator) -> None:
    pi = torch.full((50,), 0.5)
    first, second = (
        sampled(Counting(50), pi, torch.Generator().manual_seed(seed)) for seed in (0, 1)
    )
    assert first != second


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


def test_probabilities_in_half_precision_are_widened(estimator: Estimator) -> None:
    f, pi = Counting(), torch.full((3,), 0.5, dtype=torch.bfloat16, requires_grad=True)
    estimator(f, pi).backward()
    assert {z.dtype for z in f.seen} == {torch.float32}
    assert pi.grad.isfinite().all()


def test_float64_stays_float64(estimator: Estimator) -> None:
    value = estimator(Counting(3, torch.float64), torch.full((3,), 0.5, dtype=torch.float64))
    assert value.dtype == torch.float64


def test_these_remember_something() -> None:
    assert REMEMBERING == ["disarm-slopes", "rebar", "reinforce", "relax", "rodeo"]
