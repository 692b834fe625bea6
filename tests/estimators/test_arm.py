"""ARM, AR and DisARM: their equations at given noise, the printed chain, and their variances."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from l0arm.estimators import AR, ARM, DisARM, Estimator, Exact
from l0arm.gates import Bernoulli, BernoulliGates, HardSigmoid, ScaledSigmoid

PI = [0.2, 0.6, 0.9]
U = [0.1, 0.7, 0.3]  # first draws open, closed, open; second draws closed, open, open
BITS, SAMPLES = 50, 20_000

printed = pytest.mark.parametrize("estimator", [ARM("printed"), AR("printed")], ids=["arm", "ar"])
every_gate = pytest.mark.parametrize(
    "g", [ScaledSigmoid(1), ScaledSigmoid(7), HardSigmoid(7), HardSigmoid(3)], ids=str
)


def logit_gradient(
    estimator: Estimator, f: Callable[[Tensor], Tensor], pi: Tensor, u: Tensor
) -> Tensor:
    """The estimate of dE[f]/dlogit(pi). Several rows of u at once, if f takes rows too.

    Autograd returns it divided by pi (1 - pi).
    """
    leaf = pi.expand_as(u).clone().requires_grad_()
    value = estimator.at(f, leaf, u)
    (per_pi,) = torch.autograd.grad(value.flatten()[0], leaf)
    return per_pi * pi * (1 - pi)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        pytest.param(ARM(), [9 * -0.4, 9 * 0.2, 9 * -0.2], id="arm, Eq. 9"),
        pytest.param(AR(), [101 * 0.8, 101 * -0.4, 101 * 0.4], id="ar, Eq. 10"),
        pytest.param(DisARM(), [-9 / 2 * 0.8, 9 / 2 * 0.6, 0], id="disarm, 0 where draws agree"),
    ],
)
def test_the_estimate_at_given_noise(estimator: Estimator, expected: list[float]) -> None:
    """The loss is 101 at the first draw and 110 at the second."""
    pi, u = torch.tensor(PI, dtype=torch.float64), torch.tensor(U, dtype=torch.float64)
    found = logit_gradient(estimator, lambda z: z @ z.new_tensor([1.0, 10.0, 100.0]), pi, u)
    assert found.tolist() == pytest.approx(expected)


# The printed chain: Eq. 9 and 10 as printed use a gradient in logit(pi) as one in phi.


@pytest.fixture
def f() -> Callable[[Tensor], Tensor]:
    table = torch.randn(2, 2, 2, dtype=torch.float64) + 2.3
    return lambda z: table[tuple(z.long())]


@pytest.fixture
def phi() -> Tensor:
    return torch.tensor([-0.2, 0.05, 0.3], dtype=torch.float64, requires_grad=True)


def printed_mean(
    estimator: Estimator,
    f: Callable[[Tensor], Tensor],
    gates: BernoulliGates,
    integral: Callable[..., Tensor],
) -> Tensor:
    def estimate(u: Tensor) -> Tensor:
        return torch.autograd.grad(estimator.at(f, gates, u), gates.phi)[0]

    return integral(estimate, gates.probs)


def exact(f: Callable[[Tensor], Tensor], gates: BernoulliGates, of: Tensor) -> Tensor:
    return torch.autograd.grad(Exact()(f, gates), of, retain_graph=True)[0]


@printed
@every_gate
def test_the_mean_of_the_printed_chain_is_the_gradient_in_the_logit(
    estimator, g, f, phi, integral
) -> None:
    gates = Bernoulli(g)(phi)
    delta = exact(f, gates, gates.probs)  # E[f | z_j = 1] - E[f | z_j = 0]
    expected = delta * gates.probs * (1 - gates.probs)
    mean = printed_mean(estimator, f, gates, integral)
    torch.testing.assert_close(mean, expected, rtol=0, atol=1e-10)


@printed
@pytest.mark.parametrize("k", [1.0, 7.0])
def test_for_the_scaled_sigmoid_the_factor_k_is_missing(estimator, k, f, phi, integral) -> None:
    gates = Bernoulli(ScaledSigmoid(k))(phi)
    ratio = exact(f, gates, phi) / printed_mean(estimator, f, gates, integral)
    assert ratio.tolist() == pytest.approx([k] * 3, rel=1e-9)


@printed
@pytest.mark.parametrize("k", [3.0, 7.0])
def test_for_the_hard_sigmoid_the_missing_factor_depends_on_pi(
    estimator, k, f, phi, integral
) -> None:
    gates = Bernoulli(HardSigmoid(k))(phi)
    ratio = exact(f, gates, phi) / printed_mean(estimator, f, gates, integral)
    expected = (k / 7) / (gates.probs * (1 - gates.probs))
    assert ratio.tolist() == pytest.approx(expected.tolist(), rel=1e-9)


@printed
def test_a_saturated_gate_follows_a_random_walk_with_mean_0(estimator, f, integral) -> None:
    phi = torch.tensor([-0.2, 0.05, 0.9], dtype=torch.float64, requires_grad=True)
    gates = Bernoulli(HardSigmoid(7))(phi)
    u = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    assert torch.autograd.grad(estimator.at(f, gates, u), phi)[0][2] != 0
    assert printed_mean(estimator, f, gates, integral)[2].item() == pytest.approx(0, abs=1e-12)


@printed
def test_plain_probabilities_have_no_phi(estimator, f) -> None:
    way_out = r"got plain probabilities; pass gates with a phi \(Bernoulli\(g\)\(phi\)\) or use"
    with pytest.raises(TypeError, match=way_out):
        estimator(f, torch.full((3,), 0.5))


@pytest.mark.parametrize("estimator", [ARM, AR])
def test_an_unknown_chain_is_refused(estimator: type) -> None:
    with pytest.raises(ValueError, match="must be 'exact' or 'printed'; got 'Printed'"):
        estimator("Printed")


@printed
def test_the_printed_chain_is_not_declared_unbiased(estimator: Estimator) -> None:
    assert not estimator.unbiased
    assert type(estimator)().unbiased


# Variances: DisARM never varies more than ARM, AR varies far more than both.


def regime(name: str) -> Tensor:
    if name == "half":
        return 0.45 + 0.1 * torch.rand(BITS, dtype=torch.float64)
    end = {"polarised": 0.02, "very polarised": 0.002}[name]
    return torch.where(torch.rand(BITS) < 0.5, end, 1 - end).double()


@cache
def total_variances(name: str) -> dict[str, float]:
    """sum_j Var(s_j) on a random quadratic with offset 2.3 in 50 bits, with the same noise."""
    torch.manual_seed(0)
    matrix = torch.randn(BITS, BITS, dtype=torch.float64) / BITS
    f = lambda z: 2.3 + ((z @ matrix) * z).sum(-1, keepdim=True)  # noqa: E731
    pi, u = regime(name), torch.rand(SAMPLES, BITS, dtype=torch.float64)
    return {
        type(estimator).__name__: logit_gradient(estimator, f, pi, u).var(0).sum().item()
        for estimator in (ARM(), DisARM(), AR())
    }


@pytest.mark.parametrize("name", ["half", "polarised", "very polarised"])
def test_disarm_varies_less_than_arm(name: str) -> None:
    variances = total_variances(name)
    assert variances["DisARM"] < variances["ARM"]


def test_the_advantage_of_disarm_grows_as_gates_polarise() -> None:
    variances = [total_variances(name) for name in ("half", "polarised", "very polarised")]
    ratios = [found["ARM"] / found["DisARM"] for found in variances]
    assert 1 < ratios[0] < 2 < ratios[1] < 10 < ratios[2]


def test_ar_without_baseline_varies_far_more() -> None:
    variances = total_variances("half")
    assert variances["AR"] > 10 * variances["ARM"]


@pytest.mark.parametrize("pi", [[0.4, 0.5, 0.7], [0.02, 0.98, 0.3], [0.1, 0.6, 0.8, 0.998]])
def test_gate_by_gate_the_exact_second_moment_of_disarm_is_smaller(
    pi: list[float], integral: Callable[..., Tensor]
) -> None:
    table = torch.randn((2,) * len(pi), dtype=torch.float64)
    probs = torch.tensor(pi, dtype=torch.float64)
    arm, disarm = (
        integral(
            lambda u, e=estimator: (
                logit_gradient(e, lambda z: table[tuple(z.long())], probs, u) ** 2
            ),
            probs,
            points=2,  # exact for the square of a line
        )
        for estimator in (ARM(), DisARM())
    )
    assert (disarm < arm).all()
