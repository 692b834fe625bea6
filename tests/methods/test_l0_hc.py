"""L0-HC: hard concrete gates, pathwise, an L0 penalty, and a clamp."""

import math

import pytest
import torch

from l0arm import sparsify
from l0arm.estimators import Pathwise
from l0arm.gates import Bernoulli, HardConcrete
from l0arm.methods import l0_hc
from l0arm.models import MLP
from l0arm.penalties import L0, L2


def test_the_parts_of_the_method() -> None:
    method = l0_hc(0.1)
    assert (method.gate, method.estimator) == (HardConcrete(), Pathwise())
    assert method.penalties == (L0(0.1),)
    assert l0_hc(0.1, l2=0.2).penalties == (L0(0.1), L2(0.2))
    assert l0_hc(0.1, beta=0.5).gate == HardConcrete(beta=0.5)


def test_the_penalty_counts_weights_by_the_probability_to_be_open() -> None:
    gated = sparsify(MLP((4, 3, 2)), method=l0_hc(0.5))
    gated.phi.data.zero_()
    expected = 0.5 * (4 * 3 + 3 * 2) / (1 + 11 ** (-2 / 3))
    assert gated.penalty().item() == pytest.approx(expected, rel=1e-6)


def test_phi_is_clamped_after_a_step() -> None:
    gated = sparsify(MLP((4, 3, 2)), method=l0_hc(0.5))
    gated.phi.data = torch.linspace(-9.0, 9.0, 7)
    gated.method.after_step(gated, torch.optim.SGD([gated.phi], lr=0.1))
    assert gated.phi.abs().max().item() == pytest.approx(math.log(100))
    assert gated.gates.open_probability.min().item() == pytest.approx(0.0471, abs=1e-4)


@pytest.mark.filterwarnings("ignore:every unit of group")
def test_phi_learns_which_input_carries_the_label() -> None:
    gated = sparsify(MLP((2, 2)), method=l0_hc(0.2))
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=0.05))
    for _ in range(200):
        x = torch.randn(64, 2)
        y = (x[:, 0] > 0).long()
        loss = gated.loss(lambda x=x, y=y: torch.nn.functional.cross_entropy(gated(x), y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        gated.method.after_step(gated, optimizer)
    informative, noise = gated.deterministic().tolist()
    assert (informative > 0.5, noise) == (True, 0.0)


def test_pathwise_refuses_binary_gates() -> None:
    with pytest.raises(TypeError, match="BernoulliGates has no rsample"):
        Pathwise()(lambda z: z.sum(), Bernoulli()(torch.zeros(2)))
