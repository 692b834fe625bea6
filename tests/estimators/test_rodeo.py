"""RODEO: unbiased for every control variate, by enumeration, and less noise with fitted ones."""

from collections.abc import Callable

import pytest
import torch
from tests.helpers.enumeration import (
    GATES,
    gates_of,
    gradient,
    in_phi,
    noise_for,
    patterns,
    probability,
    smooth,
)
from torch import Tensor

from l0arm.estimators import RODEO, DoubleCV, Estimator, ReinforceLOO

every_gate = pytest.mark.parametrize("g", GATES.values(), ids=GATES)


def moments(estimator: Estimator, gates: object, bits: int) -> tuple[Tensor, float]:
    """Mean and total second moment of the estimate in phi, over all draws."""
    pi = gates.probs.detach()  # type: ignore[attr-defined]
    mean, square = torch.zeros(bits, dtype=torch.float64), 0.0
    for z in patterns(estimator.samples, bits):  # type: ignore[attr-defined]
        found = in_phi(estimator.at(smooth, gates, noise_for(z, pi)), gates)  # type: ignore[attr-defined,arg-type]
        mean += probability(z, pi) * found
        square += probability(z, pi) * found.square().sum().item()
    return mean, square


@every_gate
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 0.0), (0.7, -0.4), (-2.0, 3.0)])
@pytest.mark.parametrize(("samples", "bits"), [(2, 3), (3, 2)])
def test_the_mean_over_all_draws_is_the_gradient(
    g: Callable[[Tensor], Tensor], weights: tuple[float, float], samples: int, bits: int
) -> None:
    gates, estimator = gates_of(g, [-0.3, 0.05, 0.25][:bits]), RODEO(samples=samples)
    estimator.state["weights"] = torch.tensor(weights)
    mean, _ = moments(estimator, gates, bits)
    torch.testing.assert_close(mean, gradient(smooth, gates), rtol=0, atol=1e-10)


def test_without_control_variates_it_is_leave_one_out() -> None:
    gates, estimator = gates_of(GATES["sigmoid"]), RODEO(samples=3)
    estimator.state["weights"] = torch.zeros(2)
    pi = gates.probs.detach()
    for z in patterns(3, 3)[::37]:
        ours, theirs = (
            in_phi(e.at(smooth, gates, noise_for(z, pi)), gates)
            for e in (estimator, ReinforceLOO(3))
        )
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_fitted_weights_leave_less_noise_than_leave_one_out_and_double_cv() -> None:
    """The exact second moment after 200 steps, beside those of its relatives."""
    gates, estimator = gates_of(GATES["sigmoid"]), RODEO(samples=2, decay=0.995)
    random = torch.Generator().manual_seed(0)
    for _ in range(200):
        estimator(smooth, gates, random)
    _, fitted = moments(estimator, gates, 3)
    _, loo = moments(ReinforceLOO(2), gates, 3)
    _, double = moments(DoubleCV(2), gates, 3)
    assert fitted < 0.95 * min(loo, double)


@pytest.mark.parametrize("decay", [1.0, -0.1, float("nan"), "0.9"])
def test_a_decay_outside_of_its_range_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="decay is the share of the past"):
        RODEO(decay=decay)
