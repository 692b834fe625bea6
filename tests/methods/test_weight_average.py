"""The mean of the weights over a stage, in which later steps count more."""

import torch
from torch import Tensor

from l0arm import Gated, sparsify
from l0arm.methods._l0_best import Decide, DecideAndAverage, l0_best
from l0arm.methods.weight_average import add_to_average, begin_average, take_average
from l0arm.models import MLP


def gated_mlp() -> tuple[Gated, torch.optim.Optimizer]:
    torch.manual_seed(0)
    gated = sparsify(MLP((4, 3, 2)), method=l0_best(0.0))
    return gated, torch.optim.SGD(gated.parameter_groups(lr=0.1))


def wander(gated: Gated, optimizer: torch.optim.Optimizer, steps: int) -> list[Tensor]:
    """Random weights after each step. Returns those of the first layer."""
    seen = []
    for _ in range(steps):
        for p in gated.model.parameters():
            p.data = torch.randn_like(p)
        add_to_average(gated, optimizer)
        seen.append(gated.model.get_parameter("fc1.weight").detach().clone())
    return seen


def test_the_mean_weighs_a_step_by_its_number() -> None:
    gated, optimizer = gated_mlp()
    begin_average(gated, None)
    seen = wander(gated, optimizer, 6)
    take_average(gated, None)
    counts = torch.tensor([t * (t + 1) * (t + 2) for t in range(1, 7)], dtype=torch.float32)
    expected = (counts[:, None, None] * torch.stack(seen)).sum(0) / counts.sum()
    torch.testing.assert_close(gated.model.get_parameter("fc1.weight").data, expected)


def test_steps_before_and_after_the_averaging_do_not_count() -> None:
    gated, optimizer = gated_mlp()
    wander(gated, optimizer, 3)
    DecideAndAverage(Decide())(gated, None)
    seen = wander(gated, optimizer, 1)
    take_average(gated, None)
    wander(gated, optimizer, 2)
    average = gated.extras["average"]
    assert torch.equal(average.get_buffer("fc1-weight"), seen[0])
    assert average.steps == -1


def test_without_a_step_the_weights_do_not_change() -> None:
    gated, _ = gated_mlp()
    before = [p.detach().clone() for p in gated.model.parameters()]
    begin_average(gated, None)
    take_average(gated, None)
    assert all(torch.equal(a, b) for a, b in zip(gated.model.parameters(), before, strict=True))


def test_the_mean_is_saved_with_the_gates() -> None:
    gated, optimizer = gated_mlp()
    begin_average(gated, None)
    wander(gated, optimizer, 2)
    other, _ = gated_mlp()
    other.load_state_dict(gated.state_dict())
    state = torch.get_rng_state()
    wander(gated, optimizer, 2)
    torch.set_rng_state(state)
    wander(other, optimizer, 2)
    take_average(gated, None)
    take_average(other, None)
    for mine, its in zip(gated.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_a_network_in_half_precision_has_a_precise_mean() -> None:
    """In bfloat16 the mean would stop changing after some hundred steps."""
    gated, optimizer = gated_mlp()
    gated.bfloat16()
    begin_average(gated, None)
    for step in range(2000):
        for p in gated.model.parameters():
            p.data.fill_(step % 2)
        add_to_average(gated, optimizer)
    mean = gated.extras["average"].get_buffer("fc1-weight")
    assert mean.dtype == torch.float32
    assert (mean - 0.5).abs().max() < 0.01
    take_average(gated, None)
    assert gated.model.get_parameter("fc1.weight").dtype == torch.bfloat16
