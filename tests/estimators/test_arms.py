"""ARMS: the distribution of its draws in closed form, and the mean estimate under it."""

import math
from collections.abc import Callable
from itertools import combinations, product

import pytest
import torch
from tests.helpers.enumeration import GATES, gates_of, gradient, in_phi, smooth
from torch import Tensor

from l0arm.estimators import ARMS, DisARM
from l0arm.estimators.arms import antithetic_draws, correction


def law(p: float, n: int) -> dict[tuple[int, ...], float]:
    """The joint law of n draws of one gate.

    With d Dirichlet, P(d_i > t for all i in S) = max(0, 1 - |S| t)^(n-1), and a draw shows the
    rarer value where (1 - d_i)^(n-1) < m. The rest is inclusion and exclusion.
    """
    m = min(p, 1 - p)
    t = 1 - m ** (1 / (n - 1))
    all_rare = [max(0.0, 1 - size * t) ** (n - 1) for size in range(n + 1)]
    found = {}
    for rare in product((0, 1), repeat=n):
        k = sum(rare)
        others = range(n - k + 1)
        exact = sum(
            (-1) ** extra * all_rare[k + extra] * len(list(combinations(range(n - k), extra)))
            for extra in others
        )
        found[rare if p < 0.5 else tuple(1 - r for r in rare)] = exact
    return found


@pytest.mark.parametrize("n", [2, 3, 4, 6])
@pytest.mark.parametrize("p", [0.003, 0.2, 0.5, 0.7, 0.98])
def test_the_draws_follow_the_law(p: float, n: int) -> None:
    """20,000 draws. The relative entropy bounds the chance of each share, of rare patterns too.

    Where patterns are common, 12.5 is 5 standard errors.
    """
    e = torch.empty(n, 20_000, dtype=torch.float64).exponential_()
    draws = antithetic_draws(e, torch.full((20_000,), p, dtype=torch.float64)).T
    for pattern, probability in law(p, n).items():
        seen = (draws == torch.tensor(pattern)).all(1).double().mean().item()
        pairs = ((seen, probability), (1 - seen, 1 - probability))
        entropy = sum(a * math.log(a / b) for a, b in pairs if a > 0)
        assert 20_000 * entropy < 12.5


@pytest.mark.parametrize("n", [2, 3, 5])
def test_each_draw_alone_is_bernoulli(n: int) -> None:
    for p in (0.01, 0.3, 0.5, 0.9):
        alone = sum(q for pattern, q in law(p, n).items() if pattern[0])
        assert alone == pytest.approx(p, abs=1e-12)


@pytest.mark.parametrize("g", GATES.values(), ids=GATES)
@pytest.mark.parametrize(("n", "bits"), [(2, 3), (3, 3), (4, 2)])
def test_the_mean_under_the_law_is_the_gradient(
    n: int, bits: int, g: Callable[[Tensor], Tensor]
) -> None:
    gates = gates_of(g, [-0.3, 0.05, 0.25][:bits])
    laws = [law(p, n).items() for p in gates.probs.tolist()]
    mean = torch.zeros(bits, dtype=torch.float64)
    for columns in product(*laws):
        weight = torch.tensor([q for _, q in columns], dtype=torch.float64).prod()
        if weight > 0:
            draws = torch.tensor([pattern for pattern, _ in columns], dtype=torch.float64).T
            mean += weight * in_phi(ARMS(n).of_draws(smooth, gates, draws), gates)
    torch.testing.assert_close(mean, gradient(smooth, gates), rtol=0, atol=1e-10)


def test_two_draws_are_disarm() -> None:
    pi = torch.tensor([0.1, 0.4, 0.6, 0.95], dtype=torch.float64, requires_grad=True)
    for seed in range(20):
        random = torch.Generator().manual_seed(seed)
        e = torch.empty(2, 4, dtype=torch.float64).exponential_(generator=random)
        u = e[1] / e.sum(0)  # 1 - d_1, uniform
        u = torch.where(pi < 0.5, u, 1 - u).detach()
        (arms,) = torch.autograd.grad(ARMS(2).at(smooth, pi, e), pi)
        (disarm,) = torch.autograd.grad(DisARM().at(smooth, pi, u), pi)
        torch.testing.assert_close(arms, disarm, rtol=0, atol=1e-12)


def test_the_correction_of_two_draws_is_that_of_disarm() -> None:
    pi = torch.tensor([0.0, 0.2, 0.5, 0.7, 1.0])
    torch.testing.assert_close(correction(pi, 2), torch.maximum(pi, 1 - pi))


@pytest.mark.parametrize("n", [2, 3, 8])
def test_the_correction_is_finite_at_the_ends(n: int) -> None:
    pi = torch.tensor([0.0, 1e-38, 1e-7, 1 - 1e-7, 1.0])
    assert correction(pi, n).tolist() == pytest.approx([1.0] * 5, abs=1e-5)


def test_a_saturated_gate_has_one_value() -> None:
    pi = torch.tensor([0.0, 1.0])
    for first in ([0.0, 0.0], [1e-30, 1e-30], [50.0, 50.0]):
        draws = antithetic_draws(torch.tensor([first, [1.0, 1.0], [0.5, 2.0]]), pi)
        assert draws.tolist() == [[0, 1]] * 3


def test_one_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="samples must be an integer >= 2, got 1"):
        ARMS(samples=1)
