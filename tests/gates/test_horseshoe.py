"""Horseshoe gates: a log-normal of four factors, two of them shared by the group."""

import pytest
import torch

from l0arm.gates import Horseshoe, HorseshoeGates

GROUP_OF = torch.tensor([0, 0, 1])


def gates(phi: torch.Tensor) -> HorseshoeGates:
    return Horseshoe().within(GROUP_OF[: len(phi)])(phi)


def rows(*means: float, variance: float = 0.3, threshold: float = 4.0) -> torch.Tensor:
    logs = [torch.tensor(variance).log().item()] * 4
    return torch.tensor([*means, *logs, threshold])


def test_the_logarithm_of_z_has_the_mean_and_variance_of_half_the_sum() -> None:
    phi = torch.stack([rows(-3.0, 1.0, 0.5, 0.5), rows(-3.0, 1.0, 2.0, 1.0)])
    found = gates(phi)
    assert found.mean_of_log.tolist() == pytest.approx([-0.5, 0.5])
    assert found.variance_of_log.tolist() == pytest.approx([0.3, 0.3])


def test_draws_have_these_moments_and_share_the_noise_of_their_group() -> None:
    group_of = torch.arange(50_000).repeat_interleave(2)  # many groups of two gates each
    phi = rows(-1.0, 0.0, 0.0, 0.0).expand(100_000, 9)
    log_z = Horseshoe().within(group_of)(phi).sample(torch.Generator().manual_seed(0)).log()
    assert log_z.mean().item() == pytest.approx(-0.5, abs=0.01)
    assert log_z.var().item() == pytest.approx(0.3, rel=0.02)
    one, two = log_z.view(-1, 2).unbind(1)
    correlation = torch.corrcoef(torch.stack([one, two]))[0, 1].item()
    assert correlation == pytest.approx(0.5, abs=0.02)  # s_a and s_b: half of the variance


def test_the_scale_of_a_group_is_the_mean_of_its_copies() -> None:
    phi = torch.stack([rows(-2.0, 0.0, 0.0, 0.0), rows(-4.0, 0.0, 0.0, 0.0), rows(9.0, 0, 0, 0)])
    phi.requires_grad_()
    found = gates(phi)
    assert found.mean_of_log.tolist() == pytest.approx([-1.5, -1.5, 4.5])
    (found.rsample() * torch.tensor([1.0, 5.0, 0.0])).sum().backward()
    assert phi.grad is not None
    assert phi.grad[0, 0].item() == pytest.approx(phi.grad[1, 0].item())  # so copies stay equal
    assert phi.grad[0, 2].item() != pytest.approx(phi.grad[1, 2].item())
    assert phi.grad[:, 8].tolist() == [0.0, 0.0, 0.0]


def test_gates_with_a_small_mode_are_pruned_and_others_keep_their_mean() -> None:
    phi = torch.stack([rows(-2.0, 0.0, 0.0, 0.0), rows(-2.0, 0.0, -3.0, -4.0)])
    found = gates(phi)
    assert found.score.tolist() == pytest.approx([1.3, 4.8])  # Var - E
    mean = torch.tensor(-1.0 + 0.15).exp().item()
    assert found.deterministic(0.5).tolist() == pytest.approx([mean, 0.0])


def test_the_mean_over_draws_is_the_gate_at_test_time() -> None:
    phi = rows(-1.0, 0.0, 0.0, 0.0).expand(100_000, 9)
    found = Horseshoe().within(torch.arange(100_000))(phi)
    mean = found.sample(torch.Generator().manual_seed(0)).mean().item()
    assert mean == pytest.approx(found.deterministic(0.5)[0].item(), rel=0.01)


def test_copies_of_a_group_start_equal() -> None:
    phi = Horseshoe().initial(torch.full((10,), 0.5))
    assert torch.equal(phi[:, [0, 1, 4, 5, 8]], phi[:1, [0, 1, 4, 5, 8]].expand(10, 5))
    assert phi[:, 2].std() > 0


def test_a_family_without_groups_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Horseshoe\(\)\.within\(group_of\)"):
        Horseshoe()(torch.zeros(2, 9))
