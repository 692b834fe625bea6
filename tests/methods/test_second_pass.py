"""A second evaluation in eval mode is of another function, and gives decided gates a gradient."""

import pytest
import torch
from torch import Tensor, nn

from l0arm import Gated, Group, Slice, sparsify
from l0arm.methods import l0_arm


def gated_norm_net(phi: float, **options: str) -> Gated:
    """Three filters with BatchNorm, all gates at the same phi, in float64."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1))
    makes = (Slice("0.weight", 0), Slice("0.bias", 0))
    norm = tuple(Slice(f"1.{k}", 0) for k in ("weight", "bias", "running_mean", "running_var"))
    group = Group("units", 3, reads=(Slice("3.weight", 1),), makes=(*makes, *norm))
    gated = sparsify(model, [group], l0_arm(0.0, **options)).double()
    gated.phi.data.fill_(phi)
    return gated


def step(gated: Gated) -> tuple[list[tuple[bool, float]], Tensor]:
    """Mode and value of every evaluation, and the gradient of phi."""
    torch.manual_seed(1)
    x, seen = torch.randn(8, 2, dtype=torch.float64), []

    def closure() -> Tensor:
        output = gated(x)
        loss = output.square().mean()
        seen.append((loss.requires_grad, loss.item()))
        return loss

    gated.loss(closure, generator=torch.Generator().manual_seed(2)).backward()
    assert gated.phi.grad is not None
    return seen, gated.phi.grad


def test_equal_draws_have_different_losses_and_decided_gates_a_gradient() -> None:
    gated = gated_norm_net(9.0, second_pass="eval", chain="printed")
    first, second = step(gated)[0]
    assert first[0]
    assert not second[0]
    model = gated.model.eval()  # the running statistics are those that the first evaluation wrote
    torch.manual_seed(1)
    expected = model(torch.randn(8, 2, dtype=torch.float64)).square().mean().item()
    assert second[1] == pytest.approx(expected, rel=1e-12)
    u = torch.rand(3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = step(gated_norm_net(9.0, second_pass="eval", chain="printed"))[1]
    torch.testing.assert_close(found, (second[1] - first[1]) * (u - 0.5))


def test_in_training_mode_equal_draws_are_evaluated_once() -> None:
    seen, gradient = step(gated_norm_net(9.0))
    assert len(seen) == 1
    assert torch.equal(gradient, torch.zeros(3, dtype=torch.float64))


def test_modes_are_as_before_and_statistics_are_written_once() -> None:
    plain, gated = gated_norm_net(0.0), gated_norm_net(0.0, second_pass="eval")
    step(plain)
    step(gated)
    assert all(module.training for module in gated.model.modules())
    assert int(gated.model[1].num_batches_tracked) == 1
    assert torch.equal(gated.model[1].running_mean, plain.model[1].running_mean)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="second_pass must be 'train' or 'eval'; got 'test'"):
        l0_arm(0.0, second_pass="test")
