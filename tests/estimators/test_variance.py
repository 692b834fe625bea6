"""DisARM never varies more than ARM; AR varies far more than both."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from l0arm.estimators import AR, ARM, DisARM, Estimator

BITS, SAMPLES = 50, 20_000


def logit_gradient(
    estimator: Estimator, f: Callable[[Tensor], Tensor], pi: Tensor, u: Tensor
) -> Tensor:
    """The estimate of dE[f]/dlogit(pi). A row of u each, all rows at once, if f takes rows too."""
    leaf = pi.expand_as(u).clone().requires_grad_()
    value = estimator.at(f, leaf, u)
    (per_pi,) = torch.autograd.grad(value.flatten()[0], leaf)
    return per_pi * pi * (1 - pi)


@pytest.fixture
def quadratic() -> Callable[[Tensor], Tensor]:
    """A random quadratic with offset 2.3 in 50 bits, as in the design's table of variances."""
    matrix = torch.randn(BITS, BITS, dtype=torch.float64) / BITS
    return lambda z: 2.3 + ((z @ matrix) * z).sum(-1, keepdim=True)


def regime(name: str) -> Tensor:
    if name == "half":
        return 0.45 + 0.1 * torch.rand(BITS, dtype=torch.float64)
    end = {"polarised": 0.02, "very polarised": 0.002}[name]
    return torch.where(torch.rand(BITS) < 0.5, end, 1 - end).double()


def total_variances(f: Callable[[Tensor], Tensor], pi: Tensor) -> list[float]:
    """sum_j Var(s_j) of ARM, DisARM and AR, on the same noise."""
    u = torch.rand(SAMPLES, BITS, dtype=torch.float64)
    return [
        logit_gradient(estimator, f, pi, u).var(0).sum().item()
        for estimator in (ARM(), DisARM(), AR())
    ]


@pytest.mark.parametrize("name", ["half", "polarised", "very polarised"])
def test_disarm_varies_less_than_arm(quadratic: Callable[[Tensor], Tensor], name: str) -> None:
    arm, disarm, _ = total_variances(quadratic, regime(name))
    assert disarm < arm


def test_the_advantage_of_disarm_grows_as_gates_polarise(
    quadratic: Callable[[Tensor], Tensor],
) -> None:
    names = ("half", "polarised", "very polarised")
    variances = [total_variances(quadratic, regime(name)) for name in names]
    ratios = [arm / disarm for arm, disarm, _ in variances]
    assert 1 < ratios[0] < 2 < ratios[1] < 10 < ratios[2]


def test_ar_without_baseline_varies_far_more(quadratic: Callable[[Tensor], Tensor]) -> None:
    arm, _, ar = total_variances(quadratic, regime("half"))
    assert ar > 10 * arm


@pytest.mark.parametrize("pi", [[0.4, 0.5, 0.7], [0.02, 0.98, 0.3], [0.1, 0.6, 0.8, 0.998]])
def test_gate_by_gate_the_exact_second_moment_of_disarm_is_no_larger(
    pi: list[float], integral: Callable[..., Tensor]
) -> None:
    table = torch.randn((2,) * len(pi), dtype=torch.float64)
    probs = torch.tensor(pi, dtype=torch.float64)
    arm, disarm = (
        integral(
            lambda u, e=estimator: (
                logit_gradient(e, lambda z: table[tuple(z.long())], probs, u) ** 2
            ),
            probs,
            points=2,  # the square of a line is exact
        )
        for estimator in (ARM(), DisARM())
    )
    assert (disarm < arm).all()
