"""The proximal step is the proximal operator, and leaves exact zeros."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from l0arm import Gated, Group, Slice, sparsify
from l0arm.methods import group_lasso
from l0arm.methods._group_lasso import ProximalStep, members, shrink
from l0arm.models import MLP, LeNet5


def gated_mlp(lam: float = 0.1) -> Gated:
    return sparsify(MLP((5, 4, 3)), method=group_lasso(lam)).double()


def step(gated: Gated, lr: float, lam: float, momentum: float = 0.0) -> None:
    optimizer = torch.optim.SGD(gated.parameter_groups(lr=lr), momentum=momentum)
    ProximalStep(lam)(gated, optimizer)


def test_the_step_minimises_what_defines_the_proximal_operator() -> None:
    """prox(v) = argmin_w ||w - v||^2 / 2 + lr lam sqrt(|g|) ||w||, found here by descent."""
    gated, lr, lam = gated_mlp(), 0.5, 0.2
    columns = gated.model.fc2.weight.detach().clone()
    step(gated, lr, lam)
    for column, found in zip(columns.T, gated.model.fc2.weight.detach().T, strict=True):
        w = column.clone().requires_grad_()
        optimizer = torch.optim.LBFGS([w], max_iter=200, tolerance_grad=1e-12)

        def closure(
            w: torch.Tensor = w,
            column: torch.Tensor = column,
            optimizer: torch.optim.Optimizer = optimizer,
        ) -> torch.Tensor:
            optimizer.zero_grad()
            value = ((w - column) ** 2).sum() / 2 + lr * lam * math.sqrt(3) * w.norm()
            value.backward()
            return value

        if found.norm() > 0:  # the objective is smooth there
            optimizer.step(closure)
            torch.testing.assert_close(found, w.detach(), atol=1e-6, rtol=0)
        else:  # 0 is the minimum iff the norm is within the threshold
            assert column.norm() <= lr * lam * math.sqrt(3)


def test_a_group_within_the_threshold_is_exactly_zero_and_closed() -> None:
    gated = gated_mlp()
    gated.model.fc2.weight.data[:, 2] = 1e-3
    step(gated, lr=0.1, lam=0.1)
    assert torch.equal(gated.model.fc2.weight[:, 2], torch.zeros(3, dtype=torch.float64))
    assert gated.per_group(gated.deterministic())["fc2"].tolist() == [1, 1, 0, 1]


def test_momentum_increases_the_shrinkage_like_the_steps() -> None:
    one, two = gated_mlp(), gated_mlp()
    two.load_state_dict(one.state_dict())
    step(one, lr=0.1, lam=0.1)
    step(two, lr=0.01, lam=0.1, momentum=0.9)
    torch.testing.assert_close(one.model.fc1.weight, two.model.fc1.weight)


def test_a_filter_is_shrunk_together_with_its_bias() -> None:
    gated = sparsify(LeNet5(), method=group_lasso(0.1))
    gated.model.conv1.weight.data[4] = 1e-4
    gated.model.conv1.bias.data[4] = 1e-4
    step(gated, lr=0.01, lam=0.1)
    assert gated.model.conv1.bias[4] == 0.0
    assert gated.per_group(gated.deterministic())["conv1"][4] == 0.0
    gated.model.conv1.bias.data[5] = 1.0  # a bias alone keeps its filter
    gated.model.conv1.weight.data[5] = 1e-4
    step(gated, lr=0.01, lam=0.1)
    assert gated.per_group(gated.deterministic())["conv1"][5] == 1.0


def test_the_members_of_a_unit_are_what_it_counts_and_its_makers_bias() -> None:
    gated = sparsify(LeNet5(), method=group_lasso(0.1))
    tensors = dict(gated.model.named_parameters())
    found = [[piece.tensor for piece in members(g, tensors)] for g in gated.groups]
    assert found == [
        ["conv1.weight", "conv1.bias"],
        ["conv2.weight", "conv2.bias"],
        ["fc1.weight"],  # a neuron is its fan-out; the bias belongs to its fan-in
        ["fc2.weight"],
    ]


def test_a_weight_is_in_one_group() -> None:
    gated = sparsify(LeNet5(), method=group_lasso(0.1))
    counted = [piece.tensor for group in gated.groups for piece in group.counts]
    assert len(counted) == len(set(counted))


def test_a_strength_of_0_does_not_change_its_group() -> None:
    gated = gated_mlp()
    before = gated.model.fc1.weight.detach().clone()
    optimizer = torch.optim.SGD(gated.parameter_groups(lr=0.1))
    ProximalStep([0.0, 1.0])(gated, optimizer)
    assert torch.equal(gated.model.fc1.weight, before)


def test_blocks_and_lists_of_positions_are_shrunk_as_units() -> None:
    weight = nn.Parameter(torch.arange(1.0, 13.0).view(2, 6))
    block = Group("b", 3, reads=(Slice("w", 1, block=2),), counts=(Slice("w", 1, block=2),))
    listed = Slice("w", 1, index=((0, 1), (2, 3), (4, 5)))
    index = Group("i", 3, reads=(listed,), counts=(listed,))
    results = []
    for group in (block, index):
        tensor = weight.detach().clone()
        shrink(group, {"w": tensor}, torch.tensor([1.0, 2.0, 100.0]))
        results.append(tensor)
    norm = weight.detach()[:, :2].norm()
    torch.testing.assert_close(results[0][:, :2], weight.detach()[:, :2] * (1 - 1 / norm))
    assert torch.equal(results[0][:, 4:], torch.zeros(2, 2))
    torch.testing.assert_close(results[0], results[1])


def test_only_the_middle_stage_shrinks() -> None:
    method = group_lasso(0.1)
    assert [stage.penalty(0.5) for stage in method.stages] == [0.0, 1.0, 0.0]
    gated = gated_mlp()
    gated.penalty_weight = 0.0
    before = gated.model.fc1.weight.detach().clone()
    step(gated, lr=1.0, lam=1.0)
    assert torch.equal(gated.model.fc1.weight, before)


def test_closed_units_get_no_gradient_so_they_stay_zero() -> None:
    gated = gated_mlp()
    gated.model.fc2.weight.data[:, 2] = 0.0
    step(gated, lr=0.1, lam=0.01)
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=0.1))
    for _ in range(3):
        x = torch.rand(6, 5, dtype=torch.float64)
        loss = gated.loss(lambda x=x: F.cross_entropy(gated(x), torch.arange(6) % 3))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert torch.equal(gated.model.fc2.weight[:, 2], torch.zeros(3, dtype=torch.float64))


def test_a_negative_strength_is_refused() -> None:
    with pytest.raises(ValueError, match="finite number >= 0"):
        group_lasso(-1.0)


def test_the_learning_rate_is_that_of_the_weights_in_any_order_of_groups() -> None:
    one, two = gated_mlp(), gated_mlp()
    two.load_state_dict(one.state_dict())
    for gated, order in ((one, 1), (two, -1)):
        groups = gated.parameter_groups(lr=0.5, gate_lr=0.0)[::order]
        ProximalStep(0.2)(gated, torch.optim.SGD(groups))
    torch.testing.assert_close(one.state_dict(), two.state_dict(), rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"no group of the optimizer has it; build it from"):
        ProximalStep(0.2)(one, torch.optim.SGD([one.phi]))
