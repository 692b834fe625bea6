"""Generalized dropout: pi = phi + 1/2 under a Beta prior, with straight-through gradients."""

import pytest
import torch

from l0arm import sparsify
from l0arm.estimators import StraightThrough
from l0arm.gates import Bernoulli, HardSigmoid
from l0arm.methods import generalized_dropout
from l0arm.models import MLP
from l0arm.penalties import BetaPrior


def test_the_parts_of_the_method() -> None:
    method = generalized_dropout(0.1, a=0.5, b=3.0)
    assert (method.gate, method.estimator) == (Bernoulli(HardSigmoid(7.0)), StraightThrough())
    assert method.penalties == (BetaPrior(0.1, 0.5, 3.0),)


def test_the_probability_itself_is_the_parameter() -> None:
    gated = sparsify(MLP((4, 3, 2)), method=generalized_dropout(0.0))
    gated.phi.data = torch.tensor([-0.4, -0.1, 0.0, 0.1, 0.2, 0.3, 0.4])
    assert gated.gates.probs.tolist() == pytest.approx([0.1, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    assert gated.deterministic().tolist() == pytest.approx([0, 0, 0, 0.6, 0.7, 0.8, 0.9])


def test_the_gradient_in_pi_is_that_in_z_of_closed_gates_too() -> None:
    gated = sparsify(MLP((4, 1)), method=generalized_dropout(0.0)).double()
    x = torch.rand(5, 4, dtype=torch.float64)
    gated.loss(lambda: gated(x).mean()).backward()  # linear in z: dz/dpi = 1 is exact
    assert gated.phi.grad is not None
    expected = x.mean(0) * gated.model.fc1.weight.detach()[0]
    torch.testing.assert_close(gated.phi.grad, expected)


def test_probabilities_stay_off_0_and_1() -> None:
    gated = sparsify(MLP((4, 3, 2)), method=generalized_dropout(0.0))
    gated.phi.data = torch.linspace(-2.0, 2.0, 7)
    gated.method.after_step(gated, torch.optim.SGD([gated.phi], lr=0.1))
    probs = gated.gates.probs
    assert (probs.min().item(), probs.max().item()) == pytest.approx((0.001, 0.999), abs=1e-6)
