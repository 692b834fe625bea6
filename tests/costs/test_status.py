"""``gated.status()`` says what the gates and the budget do, in numbers and in words."""

import pytest
import torch

import l0arm
from l0arm.costs.budget import Budgets
from l0arm.models import MLP


def gated_mlp(probability: float, **options: object) -> l0arm.Gated:
    gated = l0arm.sparsify(MLP((10, 30, 3)), **options)
    gated.phi.data = torch.logit(torch.full((40,), probability)) / 7
    return gated


def test_the_expected_and_the_realised_share() -> None:
    """All inputs open, half of the hidden units at 0.99 and half at 0.3."""
    gated = gated_mlp(0.99, lam=0.0)
    gated.phi.data[25:] = torch.logit(torch.tensor(0.3)) / 7
    status = gated.status()
    dense = 30 * (10 + 1) + 3 * (30 + 1)
    cost = status.costs["parameters"]
    assert cost.realised == pytest.approx((15 * 11 + 3 * 16) / dense)
    hidden = 15 * 0.99 + 15 * 0.3
    assert cost.expected == pytest.approx((hidden * (10 * 0.99 + 1) + 3 * (hidden + 1)) / dense)
    assert (status.undecided, status.gates) == (15, 40)
    assert status.architecture == {"fc1": (10, 10), "fc2": (15, 30)}


@pytest.mark.parametrize(
    ("probability", "steps", "verdict"),
    [
        (0.97, 0, "on the way: the target is 100.0 % now and 40.0 % in the end"),
        (0.97, 60, "behind: parameters are 95.0 %, the target is 40.0 %. Raise gate_lr"),
        (0.55, 60, "undecided: 40 of 40 gates could go either way"),
        (0.02, 60, "nearly empty: fc1, fc2"),
    ],
)
def test_the_verdict(probability: float, steps: int, verdict: str) -> None:
    gated = gated_mlp(probability, budget="40%")
    assert isinstance(gated.budget, l0arm.costs.Budget)
    gated.budget.schedule(100)
    gated.budget.steps.fill_(steps)
    assert gated.status().verdict.startswith(verdict)


def test_decided_gates_on_target_are_called_so() -> None:
    gated = gated_mlp(0.999, budget="50%")
    gated.phi.data[22:] = -2.0  # 12 of 30 hidden units
    assert isinstance(gated.budget, l0arm.costs.Budget)
    gated.budget.warmup = 0
    assert gated.status().verdict == "decided: the budget is met in expectation"


def test_it_prints_on_one_screen_and_is_flat_for_trackers() -> None:
    status = gated_mlp(0.9, budget={"params": "40%", "bytes": "50%"}).status()
    lines = str(status).splitlines()
    assert len(lines) <= 8
    assert max(map(len, lines)) <= 80
    assert "parameters" in lines[1]
    assert "bytes" in lines[2]
    flat = status.to_dict()
    assert all(isinstance(value, float) for value in flat.values())
    assert flat["parameters/target"] == 1.0
    assert flat["open/fc2"] == 30.0


def test_several_budgets_are_kept_at_once() -> None:
    """Of two limits the stricter one decides, and the threshold fits both."""
    gated = gated_mlp(0.9, budget={"params": "70%", "bytes": "30%"})
    assert isinstance(gated.budget, Budgets)
    torch.nn.init.uniform_(gated.phi, -0.3, 0.3)
    l0arm.fit_threshold(gated)
    shares = gated.budget.shares(gated.deterministic() != 0)
    assert shares["bytes"][0] <= 0.3
    assert shares["parameters"][0] <= 0.7
    gated.budget.schedule(10)
    x, y = torch.rand(5, 10), torch.arange(5) % 3
    gated.loss(lambda: torch.nn.functional.cross_entropy(gated(x), y)).backward()
    assert [int(budget.steps) for budget in gated.budget.each] == [1, 1]


def test_bytes_are_those_of_parameters_and_buffers() -> None:
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Linear(6, 2)
    )
    gated = l0arm.sparsify(net, example_inputs=torch.rand(3, 4), budget={"bytes": "60%"})
    assert isinstance(gated.budget, l0arm.costs.Budget)
    small = gated.budget.cost
    assert small.dense == 4 * (24 + 6 + 6 + 6 + 6 + 6 + 12 + 2) + 8  # and num_batches_tracked
    z = torch.tensor([1.0, 1, 1, 0, 0, 0])
    gated.phi.data = torch.where(z > 0, 9.0, -9.0)
    state = gated.compact().state_dict()
    assert float(small(z)) == sum(t.numel() * t.element_size() for t in state.values())


def test_under_a_budget_an_empty_group_does_not_blame_lambda() -> None:
    gated = gated_mlp(0.001, budget="40%")
    with pytest.warns(l0arm.EmptyGroupWarning, match="raise the budget, set Group.floor"):
        gated(torch.rand(2, 10))
