"""A quick chi^2 test on 50 gates of estimators whose noise is too much to enumerate."""

import pytest
import torch
from tests.helpers.enumeration import hotelling_score

from l0arm.estimators import ARMS, REBAR, RELAX, UGC, Bitflip, Concrete, DoubleCV, Estimator
from l0arm.estimators.comparison import measure, quadratic

PROBLEM = quadratic(50, seed=0)
PI = torch.linspace(0.2, 0.8, 50, dtype=torch.float64)


def score(estimator: Estimator) -> float:
    random = torch.Generator().manual_seed(2)
    found = measure(estimator, PROBLEM, PI, 400, random, warmup=50)
    return hotelling_score(found.estimates, PROBLEM.logit_gradient(PI))


@pytest.mark.parametrize(
    "estimator",
    [ARMS(4), Bitflip(), DoubleCV(), REBAR(), REBAR(rate=0.0), RELAX(), UGC()],
    ids=str,
)
def test_no_bias_in_50_gates_at_4_sigma(estimator: Estimator) -> None:
    assert abs(score(estimator)) < 4


def test_a_bias_would_be_seen() -> None:
    assert score(Concrete()) > 50


def test_the_score_of_normal_estimates_is_standard() -> None:
    exact = torch.arange(50.0, dtype=torch.float64)
    scores = torch.tensor(
        [hotelling_score(exact + torch.randn(300, 50).double(), exact) for _ in range(200)]
    )
    assert abs(scores.mean()) < 0.25
    assert scores.std().item() == pytest.approx(1, abs=0.2)
