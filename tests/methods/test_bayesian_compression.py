"""BC-GNJ and BC-GHS: their penalties by hand, and thresholds chosen by validation."""

import math

import pytest
import torch

from l0arm import Gated, sparsify
from l0arm.methods import bc_ghs, bc_gnj
from l0arm.methods.bayesian_compression import ChooseThresholds, gaps
from l0arm.models import MLP
from l0arm.penalties.kl import gamma_kl, inverse_gamma_kl, log_uniform_kl, standard_normal_kl


def normal_part(gated: Gated) -> float:
    total = 0.0
    for parameter in gated.model.parameters():
        log_variance = torch.full_like(parameter, -9.0)
        total += standard_normal_kl(parameter.detach(), log_variance).sum().item()
    return total


def test_the_penalty_of_gnj_is_that_of_its_scales_and_weights() -> None:
    gated = sparsify(MLP((4, 3, 2)), method=bc_gnj(0.1))
    gated.phi.data = torch.tensor([0.5, -6.0, 0.0]).repeat(7, 1)
    scale = log_uniform_kl(torch.tensor(-6.0 - math.log(0.25))).item()
    assert gated.penalty().item() == pytest.approx(0.1 * (7 * scale + normal_part(gated)), rel=1e-4)


def test_the_penalty_of_ghs_counts_a_groups_scale_once() -> None:
    gated = sparsify(MLP((4, 3, 2)), method=bc_ghs(0.1, scale=0.01))
    gated.phi.data = torch.tensor([-3.0, 0.2, 0.1, -0.1, -2.0, -1.0, 0.0, 0.5, 4.0]).repeat(7, 1)

    def t(value: float) -> torch.Tensor:
        return torch.tensor(value)

    unit = gamma_kl(t(0.1), t(1.0)) + inverse_gamma_kl(t(-0.1), t(math.exp(0.5)))
    group = gamma_kl(t(-3.0), t(math.exp(-2)), 1e-4) + inverse_gamma_kl(t(0.2), t(math.exp(-1)))
    expected = 0.1 * (7 * unit.item() + 2 * group.item() + normal_part(gated))
    assert gated.penalty().item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("make", [bc_gnj, bc_ghs])
def test_the_noise_of_the_first_layers_weights_is_bounded(make: type) -> None:
    gated = sparsify(MLP((4, 3, 2)), method=make(0.1))
    for parameter in gated.extras.parameters():
        parameter.data.fill_(3.0)
    gated.method.after_step(gated, torch.optim.SGD(gated.parameter_groups(), lr=0.1))
    found = {k: p.max().item() for k, p in gated.extras["noise"].named_parameters()}
    assert found["fc1-weight"] == pytest.approx(math.log(0.04))
    assert found["fc2-weight"] == 3.0
    assert found["fc1-bias"] == 3.0  # the published code clips it too


def scored(scores: list[float]) -> Gated:
    """Gates of an MLP 4-3-2 with these log alphas."""
    gated = sparsify(MLP((4, 3, 2)), method=bc_gnj(0.1))
    gated.phi.data[:, 0] = 1.0
    gated.phi.data[:, 1] = torch.tensor(scores)
    return gated


def test_each_group_gets_the_lowest_threshold_that_costs_nothing() -> None:
    gated = scored([-8.0, -7.5, -1.0, 0.0, -8.0, -6.0, 1.0])
    needed = torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0])

    def accuracy() -> float:
        return 90.0 - 5.0 * float((needed * (gated.deterministic() == 0)).sum())

    ChooseThresholds(tolerance=1.0)(gated, accuracy)
    assert (gated.deterministic() != 0).float().tolist() == needed.tolist()
    thresholds = gated.phi[:, 2].tolist()
    assert thresholds[:4] == pytest.approx([-4.25] * 4)  # the middle of the gap -7.5 ... -1
    assert thresholds[4:] == pytest.approx([-2.5] * 3)


def test_a_group_whose_units_are_all_needed_keeps_all() -> None:
    gated = scored([-8.0, -7.5, -1.0, 0.0, -8.0, -6.0, 1.0])

    def accuracy() -> float:
        return 90.0 - 5.0 * float((gated.deterministic() == 0).sum())

    ChooseThresholds()(gated, accuracy)
    assert torch.all(gated.deterministic() != 0)


def test_without_validation_the_thresholds_do_not_change() -> None:
    gated = scored([-8.0] * 7)
    ChooseThresholds()(gated, None)
    assert gated.phi[:, 2].tolist() == [-3.5] * 7


def test_gaps_are_the_widest_in_ascending_order() -> None:
    scores = torch.tensor([3.0, 0.0, 10.0, 0.5, 3.25])
    assert gaps(scores, 2) == [1.75, 6.625]
    assert gaps(scores, 9) == pytest.approx([0.25, 1.75, 3.125, 6.625])
    assert gaps(torch.tensor([1.0])) == []


@pytest.mark.parametrize("make", [bc_gnj, bc_ghs])
def test_images_are_held_out_for_the_thresholds(make: type) -> None:
    method = make(1.0)
    assert method.held_out == 0.05
    assert isinstance(method.stages[-1].enter, ChooseThresholds)
    assert [stage.share for stage in method.stages] == [0.9, 0.1]


def test_a_scale_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match="half-Cauchy must be > 0"):
        bc_ghs(1.0, scale=0.0)
