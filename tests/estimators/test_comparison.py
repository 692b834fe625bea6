"""Bias, variance and cost, measured on problems where they are known."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.enumeration import expectation
from torch import Tensor, nn

from l0arm import sparsify
from l0arm.estimators import AR, DisARM, Reinforce, ReinforceLOO, StraightThrough
from l0arm.estimators.comparison import loss_under, measure, quadratic, stages
from l0arm.models import MLP

PI = torch.tensor([0.2, 0.5, 0.9, 0.6], dtype=torch.float64)


def test_the_gradient_of_the_quadratic_is_the_enumerated_one() -> None:
    problem, pi = quadratic(bits=4, seed=3), PI.clone().requires_grad_()
    (exact,) = torch.autograd.grad(expectation(problem, pi), pi)
    torch.testing.assert_close(problem.gradient(PI), exact)
    torch.testing.assert_close(problem.logit_gradient(PI), exact * PI * (1 - PI))


def test_a_seed_fixes_the_quadratic() -> None:
    z = torch.ones(5, dtype=torch.float64)
    assert quadratic(5, seed=1)(z) == quadratic(5, seed=1)(z) != quadratic(5, seed=2)(z)


def test_the_total_variance_of_ar_on_a_constant() -> None:
    """s = c (1 - 2 u): variance c^2 / 3 for each gate, its mean 0."""
    found = measure(AR(), lambda z: 2 + 0 * z.sum(), PI, 4000, torch.Generator().manual_seed(0))
    assert found.total_variance == pytest.approx(4 * 4 / 3, abs=4 * found.total_variance_error)
    assert 0 < found.total_variance_error < 0.05
    expected = torch.full((4,), (4 / 3 / 4000) ** 0.5, dtype=torch.float64)
    torch.testing.assert_close(found.standard_error, expected, rtol=0.05, atol=0)
    assert found.z_scores(torch.zeros(4)).abs().max() < 4


def test_a_bias_is_found() -> None:
    found = measure(StraightThrough(), lambda z: (z**2).sum(), PI, 400)
    exact = PI * (1 - PI)
    torch.testing.assert_close(found.bias(exact), found.mean - exact)
    assert found.z_scores(exact)[2] > 5  # the mean is 2 pi - 1 too large: at 0.9, by 0.8
    bias = found.relative_bias(exact)
    assert bias.shown
    true = ((2 * PI - 1) * exact).norm() / exact.norm()
    assert abs(bias.size - true) < 3 * bias.error


def test_without_noise_there_is_no_variance_and_no_score() -> None:
    slope = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    found = measure(StraightThrough(), lambda z: slope @ z, PI, 10)
    assert found.total_variance < 1e-25
    assert found.z_scores(slope * PI * (1 - PI)).tolist() == [0] * 4


def test_a_gate_that_no_draw_moved_has_an_infinite_score() -> None:
    pi = torch.tensor([1e-9], dtype=torch.float64)
    found = measure(DisARM(), lambda z: z.sum(), pi, 3, torch.Generator().manual_seed(0))
    assert found.z_scores(torch.ones(1, dtype=torch.float64)).tolist() == [-float("inf")]


@pytest.mark.parametrize(("estimator", "evaluations"), [(AR(), 1), (ReinforceLOO(3), 3)])
def test_evaluations_are_counted_without_the_warmup(estimator, evaluations: int) -> None:
    pi = torch.full((40,), 0.5)
    found = measure(estimator, lambda z: z.sum(), pi, 5, warmup=7)
    assert found.evaluations == evaluations
    assert found.estimates.shape == (5, 40)
    assert found.seconds > 0
    assert found.evaluations_error == 0


def test_a_warmup_fills_the_baseline_of_a_copy() -> None:
    estimator = Reinforce()
    f = lambda z: 100 + z.sum()  # noqa: E731
    cold, warm = (
        measure(estimator, f, PI, 3, torch.Generator().manual_seed(0), warmup=n) for n in (0, 20)
    )
    assert cold.estimates[0].abs().max() > 10 > warm.estimates.abs().max()
    assert estimator.state["steps"] == 0


def test_the_draws_do_not_depend_on_the_warmup() -> None:
    """Estimators with the same seed are compared at the same draws."""
    cold, warm = (
        measure(AR(), lambda z: z.sum(), PI, 5, torch.Generator().manual_seed(3), warmup=n)
        for n in (0, 4)
    )
    assert torch.equal(cold.draws, warm.draws)
    assert cold.draws.shape == (5, 4)


def test_the_ratio_of_two_variances() -> None:
    """AR on a constant: (c (1 - 2 u))^2 twice with the same u, so the ratio has no error."""
    one, two, other = (
        measure(AR(), lambda z, c=c: c + 0 * z.sum(), PI, 500, torch.Generator().manual_seed(seed))
        for c, seed in ((1, 0), (2, 0), (2, 1))
    )
    assert two.variance_ratio(one) == (pytest.approx(4), pytest.approx(0, abs=1e-12))
    ratio, error = other.variance_ratio(one)
    assert 0.05 < error < 0.3
    assert abs(ratio - 4) < 3 * error


def test_one_draw_is_no_variance() -> None:
    with pytest.raises(ValueError, match="at least 2 draws; got draws=1"):
        measure(AR(), lambda z: z.sum(), PI, 1)


def test_stages_draw_every_gate_once() -> None:
    pi = torch.full((10_000,), 0.8)
    found = stages(pi, torch.Generator().manual_seed(0))
    assert list(found) == ["start", "polarised", "converged"]
    assert torch.equal(found["start"], pi)
    opened = found["polarised"] > 0.5
    assert opened.float().mean().item() == pytest.approx(0.8, abs=0.02)
    assert torch.equal(found["polarised"], torch.where(opened, 0.98, 0.02))
    assert torch.equal(found["converged"], torch.where(opened, 0.998, 0.002))


class WithDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.norm = MLP((4, 3, 2)).double(), nn.BatchNorm1d(4).double()
        self.mlp.fc1.bias.data += 2.0  # no unit is dead

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(F.dropout(self.norm(x), 0.5))


def test_measuring_a_network_does_not_change_it() -> None:
    model = WithDropout()
    groups = [
        replace(
            group,
            reads=tuple(replace(s, tensor=f"mlp.{s.tensor}") for s in group.reads),
            makes=tuple(replace(s, tensor=f"mlp.{s.tensor}") for s in group.makes),
            counts=(),
            select=None,
        )
        for group in model.mlp.groups()
    ]
    gated = sparsify(model, groups, lam=0.0).double()
    x, y = torch.rand(6, 4, dtype=torch.float64), torch.arange(6) % 2
    f = loss_under(gated, lambda: F.cross_entropy(gated(x), y))
    before = {key: value.clone() for key, value in gated.state_dict().items()}
    z = torch.tensor([1.0, 0, 1, 1, 0, 1, 1], dtype=torch.float64)
    assert f(z) == f(z)  # one dropout mask
    leaf = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(f(leaf), leaf)
    assert (slope[[1, 4]] != 0).all()  # closed gates have one too
    found = measure(StraightThrough(), f, gated.gates.probs, 5)
    assert found.estimates.shape == (5, 7)
    after = gated.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_gate_that_no_draw_moved_shows_no_bias_but_a_wide_limit() -> None:
    """Half of |gradient|^2 belongs to it."""
    pi = torch.tensor([0.5, 1e-9], dtype=torch.float64)
    found = measure(DisARM(), lambda z: z.sum(), pi, 30, torch.Generator().manual_seed(0))
    bias = found.relative_bias(torch.tensor([0.25, 0.25], dtype=torch.float64))
    assert not bias.shown
    assert bias.limit == pytest.approx(0.5**0.5)


def test_the_cost_of_an_estimate_includes_the_backward_pass_to_the_weights() -> None:
    weight, slopes = torch.ones(4, requires_grad=True, dtype=torch.float64), []
    weight.register_hook(slopes.append)
    measure(DisARM(), lambda z: weight @ z, PI, 5)
    assert not slopes
    measure(DisARM(), lambda z: weight @ z, PI, 5, weights=[weight])
    assert len(slopes) == 5
    measure(DisARM(), lambda z: weight @ z, PI, 5, weights=iter([weight]))  # as model.parameters()
    assert len(slopes) == 10
