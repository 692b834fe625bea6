"""DisARM with slopes of earlier steps: unbiased for any slopes, without noise on a linear loss."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from tests.helpers.enumeration import GATES, gates_of, gradient, in_phi, smooth
from torch import Tensor

from l0arm.estimators import DisARM, DisARMSlopes


def mean_over_noise(estimator: DisARM | DisARMSlopes, f: Callable[[Tensor], Tensor], gates):
    """Exact: each gate's pair of draws has three cases, cut at m and 1 - m, m = min(pi, 1 - pi)."""
    m = torch.minimum(gates.probs, 1 - gates.probs).detach()
    points = torch.stack([m / 2, torch.full_like(m, 0.5), 1 - m / 2])
    chances = torch.stack([m, 1 - 2 * m, m])
    mean, square = torch.zeros_like(m), torch.zeros_like(m)
    for case in product(range(3), repeat=len(m)):
        which = (torch.tensor(case), torch.arange(len(m)))
        estimate = in_phi(estimator.at(f, gates, points[which]), gates)
        mean += chances[which].prod() * estimate
        square += chances[which].prod() * estimate.square()
    return mean, (square - mean.square()).sum()


@pytest.mark.parametrize("g", GATES.values(), ids=GATES)
@pytest.mark.parametrize("slope", [[0.0, 0.0, 0.0], [2.0, -3.0, 1.0]])
def test_the_mean_over_all_draws_is_the_gradient(
    g: Callable[[Tensor], Tensor], slope: list[float]
) -> None:
    gates, estimator = gates_of(g), DisARMSlopes()
    estimator.state["slope"] = torch.tensor(slope, dtype=torch.float64)
    mean, _ = mean_over_noise(estimator, smooth, gates)
    torch.testing.assert_close(mean, gradient(smooth, gates), rtol=0, atol=1e-10)


def test_good_slopes_take_variance_away() -> None:
    """With the true slopes of the expectation less is left than DisARM has, by enumeration."""
    gates, estimator = gates_of(GATES["sigmoid"]), DisARMSlopes()
    pi = gates.probs.detach()
    _, plain = mean_over_noise(DisARM(), smooth, gates)
    estimator.state["slope"] = gradient(smooth, gates) / (pi * (1 - pi))
    _, controlled = mean_over_noise(estimator, smooth, gates)
    assert controlled < 0.5 * plain


def test_the_slopes_are_a_moving_mean_of_those_at_the_draws() -> None:
    estimator = DisARMSlopes(decay=0.5)
    probs = torch.full((2,), 0.5, requires_grad=True)
    for factor in (1.0, 3.0, 5.0):  # means 1, then (1 + 3) / 2, then (2 + 5) / 2
        estimator(lambda z, k=factor: k * z.sum(), probs)
    assert estimator.state["slope"].tolist() == [3.5, 3.5]


@pytest.mark.parametrize("decay", [1.0, -0.1, float("nan"), "0.9"])
def test_a_decay_outside_of_its_range_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="decay is the share of the past"):
        DisARMSlopes(decay=decay)
