"""The Beta prior is minus its log density, for every weight a gate answers for."""

import math

import pytest
import torch

from l0arm import HardSigmoid, sparsify
from l0arm.methods import l0
from l0arm.models import MLP
from l0arm.penalties import BetaPrior


def test_it_is_minus_the_log_density_of_beta() -> None:
    gated = sparsify(MLP((4, 3, 2)), method=l0(0.0, gate=HardSigmoid()))
    gated.phi.data = torch.tensor([-0.4, -0.2, 0.0, 0.2, 0.1, 0.3, 0.4])
    pi, sizes = (gated.phi + 0.5).tolist(), [3, 3, 3, 3, 2, 2, 2]
    a, b, lam = 0.7, 2.5, 0.01
    expected = -lam * sum(
        size * ((a - 1) * math.log(p) + (b - 1) * math.log(1 - p))
        for p, size in zip(pi, sizes, strict=True)
    )
    assert BetaPrior(lam, a, b)(gated, gated.gates).item() == pytest.approx(expected, rel=1e-5)


def test_a_flat_prior_costs_nothing_and_strengths_go_by_group() -> None:
    gated = sparsify(MLP((4, 3, 2)), method=l0(0.0))
    assert BetaPrior(1.0, 1.0, 1.0)(gated, gated.gates).item() == 0.0
    both, first = BetaPrior(1.0), BetaPrior([1.0, 0.0])
    assert 0 < first(gated, gated.gates).item() < both(gated, gated.gates).item()


def test_a_saturated_gate_has_a_finite_penalty() -> None:
    gated = sparsify(MLP((4, 3, 2)), method=l0(0.0, gate=HardSigmoid()))
    gated.phi.data.fill_(9.0)
    assert BetaPrior(1.0)(gated, gated.gates).isfinite()


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="a > 0 and b > 0; got a=0"):
        BetaPrior(1.0, 0.0, 2.0)
