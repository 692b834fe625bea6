"""Sparse VD: weights with too much noise become 0, units without weights are closed."""

import math

import pytest
import torch

from l0arm import Gated, sparsify
from l0arm.methods import sparse_vd
from l0arm.models import MLP
from l0arm.penalties.kl import log_uniform_kl


def gated_mlp(lam: float = 1.0) -> Gated:
    return sparsify(MLP((4, 3, 2)), method=sparse_vd(lam))


def after_step(gated: Gated) -> None:
    gated.method.after_step(gated, torch.optim.SGD(gated.parameter_groups(), lr=0.1))


def test_the_penalty_is_the_divergence_of_every_weight() -> None:
    gated = gated_mlp(0.1)
    total = 0.0
    for layer in (gated.model.fc1, gated.model.fc2):
        for w in layer.weight.flatten().tolist():
            log_alpha = min(8.0, max(-8.0, -10.0 - math.log(w * w + 1e-8)))
            total += log_uniform_kl(torch.tensor(log_alpha)).item()
    assert gated.penalty().item() == pytest.approx(0.1 * total, rel=1e-4)


def test_weights_with_log_alpha_above_the_threshold_become_0() -> None:
    gated = gated_mlp()
    gated.model.fc1.weight.data.fill_(0.1)
    noise = gated.extras["noise"].get_parameter("fc1-weight")
    noise.data.fill_(math.log(0.1**2) + 2.99)
    noise.data[0, 1] = math.log(0.1**2) + 3.01
    after_step(gated)
    zero = torch.zeros(3, 4, dtype=torch.bool)
    zero[0, 1] = True
    assert torch.equal(gated.model.fc1.weight == 0, zero)
    assert torch.all(gated.deterministic() == 1)


def test_nothing_is_pruned_before_the_penalty_has_its_full_weight() -> None:
    gated = gated_mlp()
    gated.extras["noise"].get_parameter("fc1-weight").data.fill_(5.0)
    gated.penalty_weight = 0.9
    after_step(gated)
    assert torch.all(gated.model.fc1.weight != 0)


def test_units_without_weights_are_closed() -> None:
    gated = gated_mlp()
    gated.extras["noise"].get_parameter("fc1-weight").data[1] = 5.0
    after_step(gated)
    assert gated.deterministic().tolist() == [1, 1, 1, 1, 1, 0, 1]


def test_a_pruned_weight_is_0_and_its_noise_still_trains() -> None:
    gated = sparsify(MLP((4, 2)), method=sparse_vd(0.0))
    noise = gated.extras["noise"].get_parameter("fc1-weight")
    noise.data[0, 1] = 5.0
    after_step(gated)
    assert gated.model.fc1.weight[0, 1] == 0
    x = torch.tensor([[0.0, 1.0, 0.0, 0.0]])  # through the pruned weight
    assert not torch.equal(gated(x), gated(x))
    gated.loss(lambda: gated(x).square().sum()).backward()
    assert noise.grad is not None
    assert noise.grad[0, 1] != 0


def test_the_noise_has_variance_sigma2_also_where_log_alpha_is_clamped() -> None:
    """The reference draws it with e^{clamp(log alpha)} theta^2, which is smaller by e^4 here."""
    gated = sparsify(MLP((1, 1)), method=sparse_vd(0.0))
    gated.model.fc1.weight.data.fill_(math.exp(-5.0))
    gated.extras["noise"].get_parameter("fc1-weight").data.fill_(2.0)  # log alpha = 12
    torch.manual_seed(0)
    with torch.no_grad():
        draws = gated(torch.ones(20_000, 1))
    error = math.sqrt(2 / 20_000)  # relative, of a variance
    assert draws.var().item() == pytest.approx(math.exp(2.0), rel=4 * error)


def test_the_warm_up_is_that_of_epochs_5_to_20_of_200() -> None:
    (stage,) = sparse_vd(1.0).stages
    assert [stage.penalty(epoch / 200) for epoch in (4, 5, 20, 21)] == [0.0, 0.0, 1.0, 1.0]
    assert sparse_vd(1.0, warm_up=[0.5, 1.0]).stages[0].penalty(0.5) == 0.0


def test_noise_is_trained_with_phi_and_without_weight_decay() -> None:
    gated = gated_mlp()
    groups = gated.parameter_groups(lr=0.1, gate_lr=0.2, weight_decay=0.3)
    of_gates = {id(p) for p in groups[1]["params"]}
    assert {id(p) for p in gated.extras.parameters()} < of_gates
    assert (groups[1]["lr"], groups[1]["weight_decay"]) == (0.2, 0.0)
    state = gated.state_dict()
    assert "extras.noise.fc1-weight" in state


def test_a_negative_strength_is_refused() -> None:
    with pytest.raises(ValueError, match=r"finite number >= 0; got -1\.0"):
        sparse_vd(-1.0)
