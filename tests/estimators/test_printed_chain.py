"""Eq. 9 and 10 as printed: a gradient in the logit of pi, taken for one in phi."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from l0arm.estimators import AR, ARM, Estimator, Exact
from l0arm.gates import Bernoulli, BernoulliGates, HardSigmoid, ScaledSigmoid

both = pytest.mark.parametrize("estimator", [ARM("printed"), AR("printed")], ids=["arm", "ar"])
every_gate = pytest.mark.parametrize(
    "g", [ScaledSigmoid(1), ScaledSigmoid(7), HardSigmoid(7), HardSigmoid(3)], ids=str
)


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


@both
@every_gate
def test_its_mean_is_the_gradient_in_the_logit(estimator, g, f, phi, integral) -> None:
    gates = Bernoulli(g)(phi)
    delta = exact(f, gates, gates.probs)  # E[f | z_j = 1] - E[f | z_j = 0]
    logit_gradient = delta * gates.probs * (1 - gates.probs)
    mean = printed_mean(estimator, f, gates, integral)
    torch.testing.assert_close(mean, logit_gradient, rtol=0, atol=1e-10)


@both
@pytest.mark.parametrize("k", [1.0, 7.0])
def test_for_the_scaled_sigmoid_the_factor_k_is_missing(estimator, k, f, phi, integral) -> None:
    gates = Bernoulli(ScaledSigmoid(k))(phi)
    ratio = exact(f, gates, phi) / printed_mean(estimator, f, gates, integral)
    assert ratio.tolist() == pytest.approx([k] * 3, rel=1e-9)


@both
@pytest.mark.parametrize("k", [3.0, 7.0])
def test_for_the_hard_sigmoid_the_missing_factor_depends_on_pi(
    estimator, k, f, phi, integral
) -> None:
    gates = Bernoulli(HardSigmoid(k))(phi)
    ratio = exact(f, gates, phi) / printed_mean(estimator, f, gates, integral)
    expected = (k / 7) / (gates.probs * (1 - gates.probs))
    assert ratio.tolist() == pytest.approx(expected.tolist(), rel=1e-9)


@both
def test_a_saturated_gate_walks_at_random_with_mean_0(estimator, f, integral) -> None:
    phi = torch.tensor([-0.2, 0.05, 0.9], dtype=torch.float64, requires_grad=True)
    gates = Bernoulli(HardSigmoid(7))(phi)
    u = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    assert torch.autograd.grad(estimator.at(f, gates, u), phi)[0][2] != 0
    assert printed_mean(estimator, f, gates, integral)[2].item() == pytest.approx(0, abs=1e-12)


@both
def test_plain_probabilities_have_no_phi(estimator, f) -> None:
    way_out = r"got plain probabilities; pass gates with a phi \(Bernoulli\(g\)\(phi\)\) or use"
    with pytest.raises(TypeError, match=way_out):
        estimator(f, torch.full((3,), 0.5))


@pytest.mark.parametrize("estimator", [ARM, AR])
def test_a_misspelt_chain_is_refused(estimator: type) -> None:
    with pytest.raises(ValueError, match="must be 'exact' or 'printed'; got 'Printed'"):
        estimator("Printed")


@both
def test_it_is_not_called_unbiased(estimator: Estimator) -> None:
    assert not estimator.unbiased
    assert type(estimator)().unbiased
