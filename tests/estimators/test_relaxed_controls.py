"""REBAR and RELAX: unbiased in every state, by quadrature over their noise, and tuned downhill."""

import copy
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from tests.helpers.enumeration import GATES, gates_of, gradient, in_phi, smooth
from torch import Tensor

from l0arm.estimators import REBAR, RELAX, Estimator, Reinforce
from l0arm.estimators._relaxation import (
    conditional_logistic,
    conditional_slope,
    logistic,
    open_gates,
)
from l0arm.estimators._surrogate import uniform_like
from l0arm.estimators.comparison import measure, quadratic
from l0arm.estimators.relax import _network

every_gate = pytest.mark.parametrize("g", GATES.values(), ids=GATES)


def rebar(c: float, temperature: float) -> REBAR:
    return REBAR(temperature=temperature, c=c, rate=0.0)


def relax(bits: int) -> RELAX:
    """With weights as after a long run."""
    estimator = RELAX(hidden=3)
    estimator.at(smooth, torch.full((bits,), 0.5), *torch.rand(2, bits))  # sizes the network
    for name in ("inward", "outward", "linear", "bias"):
        estimator.state[name] = torch.randn_like(estimator.state[name])
    return estimator


def cell(low: float, high: float, nodes: int) -> list[tuple[float, float]]:
    """Gauss-Legendre in t with x = 3 t^2 - 2 t^3: the estimate has roots of u at the ends."""
    points, weights = np.polynomial.legendre.leggauss(nodes)
    t, w = (points + 1) / 2, weights / 2
    x = low + (high - low) * (3 * t**2 - 2 * t**3)
    return list(zip(x.tolist(), ((high - low) * 6 * t * (1 - t) * w).tolist(), strict=True))


def mean_over_noise(
    estimator: Estimator, f: Callable[[Tensor], Tensor], gates, nodes: int
) -> Tensor:
    pi = gates.probs.detach().tolist()
    axes = [cell(0.0, 1 - p, nodes) + cell(1 - p, 1.0, nodes) for p in pi]
    axes += [cell(0.0, 1.0, nodes)] * len(pi)
    total = torch.zeros(len(pi), dtype=torch.float64)
    for point in product(*axes):
        noise = torch.tensor([x for x, _ in point], dtype=torch.float64)
        weight = np.prod([w for _, w in point])
        total += weight * in_phi(estimator.at(f, gates, *noise.chunk(2)), gates)
    return total


@every_gate
@pytest.mark.parametrize(("c", "temperature"), [(1.0, 2 / 3), (0.5, 1.0), (-2.0, 0.5)])
def test_the_mean_of_rebar_is_the_gradient(
    c: float, temperature: float, g: Callable[[Tensor], Tensor]
) -> None:
    gates = gates_of(g, [0.12])
    mean = mean_over_noise(rebar(c, temperature), smooth, gates, nodes=14)
    torch.testing.assert_close(mean, gradient(smooth, gates), rtol=2e-5, atol=0)


@every_gate
def test_the_mean_of_relax_is_the_gradient(g: Callable[[Tensor], Tensor]) -> None:
    gates = gates_of(g, [0.12])
    mean = mean_over_noise(relax(1), smooth, gates, nodes=14)
    torch.testing.assert_close(mean, gradient(smooth, gates), rtol=2e-5, atol=0)


# Every further node reduces the error of the quadrature about tenfold.
TWO_GATES = [
    pytest.param(lambda: rebar(1.0, 1.0), 5, 1e-5, id="rebar"),
    pytest.param(lambda: relax(2), 5, 3e-4, id="relax"),
    pytest.param(lambda: rebar(1.0, 1.0), 6, 1e-6, id="rebar-6", marks=pytest.mark.slow),
    pytest.param(lambda: relax(2), 6, 3e-5, id="relax-6", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("make", "nodes", "error"), TWO_GATES)
def test_the_mean_over_the_noise_of_two_gates(
    make: Callable[[], Estimator], nodes: int, error: float
) -> None:
    gates = gates_of(torch.sigmoid, [-0.4, 0.3])
    mean = mean_over_noise(make(), smooth, gates, nodes)
    torch.testing.assert_close(mean, gradient(smooth, gates), rtol=0, atol=error)


def test_conditional_noise_is_the_noise_given_its_sign() -> None:
    """Quantiles: P(zeta' < zeta at u) must be v, with u = 1 - pi + v pi (open), v (1 - pi)."""
    v = torch.linspace(0.01, 0.99, 9, dtype=torch.float64)
    for p in (0.02, 0.4, 0.9):
        pi = torch.full_like(v, p)
        opened = conditional_logistic(pi, torch.ones_like(v), v)
        closed = conditional_logistic(pi, torch.zeros_like(v), v)
        torch.testing.assert_close(opened, logistic(pi, 1 - p + v * p))
        torch.testing.assert_close(closed, logistic(pi, v * (1 - p)))
        assert (opened > 0).all()
        assert (closed < 0).all()


@pytest.mark.parametrize("z", [0.0, 1.0])
def test_the_slope_of_the_conditional_noise(z: float) -> None:
    eta = torch.linspace(-4, 4, 9, dtype=torch.float64, requires_grad=True)
    pi, draw, v = torch.sigmoid(eta), torch.full((9,), z), torch.linspace(0.05, 0.95, 9).double()
    zeta = conditional_logistic(pi, draw, v)
    (slope,) = torch.autograd.grad(zeta.sum(), eta)
    torch.testing.assert_close(conditional_slope(pi, draw, zeta).detach(), slope.detach())


def test_the_slope_of_the_network() -> None:
    weights = [torch.randn(size, dtype=torch.float64) for size in ((3, 5), (3,), (5,), ())]
    zeta = torch.randn(5, dtype=torch.float64, requires_grad=True)
    guess, slope = _network(zeta, torch.rand(5), 0.7, *weights)
    torch.testing.assert_close(slope, torch.autograd.grad(guess, zeta)[0])


def test_rebar_varies_less_than_reinforce_with_a_baseline() -> None:
    problem, pi = quadratic(bits=10), torch.full((10,), 0.4, dtype=torch.float64)
    variances = [
        measure(estimator, problem, pi, 600, torch.Generator().manual_seed(0), warmup=100)
        for estimator in (REBAR(rate=0.0), Reinforce())
    ]
    assert variances[0].total_variance < 0.6 * variances[1].total_variance


@pytest.mark.parametrize(
    ("poor", "rate"), [(REBAR(c=-1.0, temperature=3.0, rate=0.0), 0.05), (RELAX(rate=0.0), 0.02)]
)
def test_tuning_reduces_the_variance(poor: Estimator, rate: float) -> None:
    problem, pi = quadratic(bits=10), torch.full((10,), 0.4, dtype=torch.float64)
    tuned = (
        REBAR(c=-1.0, temperature=3.0, rate=rate) if isinstance(poor, REBAR) else RELAX(rate=rate)
    )
    before, after = (
        measure(e, problem, pi, 300, torch.Generator().manual_seed(0), warmup)
        for e, warmup in ((poor, 1), (tuned, 400))
    )
    assert after.total_variance < 0.7 * before.total_variance


def test_the_step_of_c_descends_the_squared_estimate() -> None:
    """s = A + c B, so the derivative of |s|^2 in c is 2 s.B, found here from two values of c."""
    pi = torch.tensor([0.3, 0.6], dtype=torch.float64, requires_grad=True)
    seen = []
    for c in (0.0, 1.0):
        value = REBAR(c=c, rate=0.0)(smooth, pi, torch.Generator().manual_seed(4))
        (per_pi,) = torch.autograd.grad(value, pi)
        seen.append(per_pi * (pi * (1 - pi)).detach())
    derivative = 2 * seen[1] @ (seen[1] - seen[0])
    estimator = REBAR(c=1.0, rate=0.01)
    estimator(smooth, pi, torch.Generator().manual_seed(4))
    first_moment = estimator.state["c_first"].item()
    assert first_moment == pytest.approx(0.1 * derivative.item(), rel=1e-5)
    assert estimator.state["c"].item() == pytest.approx(1 - 0.01 * np.sign(derivative.item()))


def test_the_step_of_the_temperature_descends_the_squared_estimate() -> None:
    def squared(log_temperature: float) -> float:
        pi = torch.tensor([0.3, 0.6], dtype=torch.float64, requires_grad=True)
        estimator = REBAR(temperature=float(np.exp(log_temperature)), rate=0.0)
        estimator.state.double()
        estimator.state["log_temperature"] = torch.tensor(log_temperature, dtype=torch.float64)
        value = estimator(smooth, pi, torch.Generator().manual_seed(4))
        (per_pi,) = torch.autograd.grad(value, pi)
        return (per_pi * pi * (1 - pi)).square().sum().item()

    derivative = (squared(-0.4 + 1e-5) - squared(-0.4 - 1e-5)) / 2e-5
    estimator = REBAR(temperature=float(np.exp(-0.4)), rate=0.01)
    pi = torch.tensor([0.3, 0.6], dtype=torch.float64, requires_grad=True)
    estimator(smooth, pi, torch.Generator().manual_seed(4))
    found = estimator.state["log_temperature_first"].item()
    assert found == pytest.approx(0.1 * derivative, rel=1e-4)


def test_rate_0_tunes_nothing() -> None:
    for estimator, names in [
        (REBAR(rate=0.0), ("c", "log_temperature")),
        (RELAX(rate=0.0), ("inward", "outward", "linear", "bias")),
    ]:
        estimator(smooth, torch.tensor([0.3, 0.6]), torch.Generator().manual_seed(0))
        before = {name: estimator.state[name].clone() for name in names}
        estimator(smooth, torch.tensor([0.3, 0.6]), torch.Generator().manual_seed(1))
        assert all(torch.equal(before[name], estimator.state[name]) for name in names)


def test_after_the_first_step_the_bias_of_the_network_is_the_loss() -> None:
    estimator = RELAX()
    value = estimator(lambda z: 7.0 + 0 * z.sum(), torch.tensor([0.3, 0.6], requires_grad=True))
    assert estimator.state["bias"] == value == 7


def test_the_network_is_sized_again_if_the_number_of_gates_changes() -> None:
    estimator = RELAX(hidden=4)
    for gates in (3, 5):
        estimator(lambda z: z.sum(), torch.full((gates,), 0.5, requires_grad=True)).backward()
        assert estimator.state["inward"].shape == (4, gates)
        assert estimator.state["inward_first"].shape == (4, gates)


@pytest.mark.parametrize("estimator", [REBAR, RELAX])
def test_a_rate_is_not_negative(estimator: type) -> None:
    with pytest.raises(ValueError, match=r"rate is the step of the tuning, >= 0 .*got -1"):
        estimator(rate=-1)


def test_a_network_has_hidden_units() -> None:
    with pytest.raises(ValueError, match="hidden is a number of units >= 1; got 0"):
        RELAX(hidden=0)


def test_a_saturated_gate_has_one_value_even_at_u_0() -> None:
    assert open_gates(torch.zeros(2), torch.tensor([0.0, 1.0])).tolist() == [0, 1]


def test_with_many_gates_the_network_does_not_diverge() -> None:
    """Its V weights move together: with steps of the same size for any V, r would oscillate."""
    pi = torch.where(torch.arange(500) % 2 == 0, 0.02, 0.98)
    f = lambda z: 1 + z[:20].mean()  # noqa: E731
    relax, reinforce = (
        measure(estimator, f, pi, 50, torch.Generator().manual_seed(0), warmup=100)
        for estimator in (RELAX(), Reinforce())
    )
    assert relax.total_variance < 10 * reinforce.total_variance


@pytest.mark.parametrize("estimator", [REBAR(rate=0.1), RELAX(rate=0.1)], ids=["rebar", "relax"])
def test_an_estimate_uses_what_was_learned_before_it(estimator: Estimator) -> None:
    """Parameters that were tuned on the same noise would bias it."""
    pi = torch.tensor([0.3, 0.6, 0.8], dtype=torch.float64, requires_grad=True)
    for seed in range(5):
        before = copy.deepcopy(estimator)
        random = torch.Generator().manual_seed(seed)
        if seed == 0 and isinstance(estimator, RELAX):
            estimator(smooth, pi, random)  # sizes its network with noise of its own
            continue
        (found,) = torch.autograd.grad(estimator(smooth, pi, random), pi)
        noise = torch.Generator().manual_seed(seed)
        u, v = uniform_like(pi, noise), uniform_like(pi, noise)
        (expected,) = torch.autograd.grad(before.at(smooth, pi, u, v), pi)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
        (later,) = torch.autograd.grad(estimator.at(smooth, pi, u, v), pi)
        assert not torch.allclose(later, expected, rtol=1e-4)  # it has learned from it
