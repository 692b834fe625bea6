"""Estimators that flip single gates: bitflip, UGC and local expectation."""

from collections.abc import Callable
from itertools import accumulate, pairwise

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

from l0arm.estimators import UGC, Bitflip, DisARM, LocalExpectation
from l0arm.estimators.bitflip import pick_gate

every_gate = pytest.mark.parametrize("g", GATES.values(), ids=GATES)
both = pytest.mark.parametrize("q", ["variance", "uniform"])


def choices(pi: Tensor, q: str) -> list[tuple[float, float]]:
    """For each gate, a w that picks it, and the probability of that."""
    weights = (pi * (1 - pi) if q == "variance" else torch.ones_like(pi)).tolist()
    edges = [0.0, *accumulate(weight / sum(weights) for weight in weights)]
    return [((low + high) / 2, high - low) for low, high in pairwise(edges)]


@both
@every_gate
def test_the_mean_of_bitflip_is_the_gradient(q: str, g: Callable[[Tensor], Tensor]) -> None:
    gates = gates_of(g)
    pi = gates.probs.detach()
    mean = torch.zeros(3, dtype=torch.float64)
    for z in patterns(1, 3):
        for w, share in choices(pi, q):
            noise = noise_for(z[0], pi), torch.tensor(w, dtype=torch.float64)
            estimate = in_phi(Bitflip(q).at(smooth, gates, *noise), gates)
            mean += probability(z, pi) * share * estimate
    torch.testing.assert_close(mean, gradient(smooth, gates), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "phi", [[-0.3, 0.05, 0.25], [-3.0, 0.05, 2.5]]
)  # 0 and 2 gates are flipped
def test_the_mean_of_ugc_is_the_gradient(phi: list[float], integral: Callable[..., Tensor]) -> None:
    gates = gates_of(torch.sigmoid, phi)
    mean = torch.zeros(3, dtype=torch.float64)
    for w in (1 / 6, 3 / 6, 5 / 6):
        choice = torch.tensor(w, dtype=torch.float64)
        mean += (
            integral(lambda u, w=choice: in_phi(UGC().at(smooth, gates, u, w), gates), gates.probs)
            / 3
        )
    torch.testing.assert_close(mean, gradient(smooth, gates), rtol=0, atol=1e-10)


def test_without_a_gate_near_0_or_1_ugc_is_disarm() -> None:
    pi = torch.tensor([0.3, 0.5, 0.8], requires_grad=True)
    u = torch.tensor([0.1, 0.7, 0.4])
    (ugc,) = torch.autograd.grad(UGC().at(smooth, pi, u, torch.tensor(0.5)), pi)
    (disarm,) = torch.autograd.grad(DisARM().at(smooth, pi, u), pi)
    assert torch.equal(ugc, disarm)


@pytest.mark.parametrize(("w", "evaluations"), [(0.1, 3), (0.9, 2)])
def test_ugc_flips_only_a_gate_that_is_near_0_or_1(w: float, evaluations: int) -> None:
    seen = []
    f = lambda z: seen.append(z) or z.sum()  # noqa: E731
    UGC().at(f, torch.tensor([0.01, 0.5]), torch.tensor([0.5, 0.3]), torch.tensor(w))
    assert len(seen) == evaluations


@both
def test_bitflip_moves_one_gate_and_by_the_right_amount(q: str) -> None:
    pi = torch.tensor([0.5, 0.1], requires_grad=True)
    f = lambda z: z @ torch.tensor([1.0, 5.0])  # noqa: E731
    Bitflip(q).at(f, pi, torch.tensor([0.3, 0.8]), torch.tensor(0.99)).backward()
    share = 0.09 / 0.34 if q == "variance" else 0.5
    assert pi.grad.tolist() == pytest.approx([0, 5 / share])


@both
def test_the_second_moment_of_bitflip_on_a_linear_loss(q: str) -> None:
    """sum_i q_i (a_i v_i / q_i)^2 with v = pi (1 - pi)."""
    pi = torch.tensor([0.5, 0.02, 0.3], dtype=torch.float64, requires_grad=True)
    v = (pi * (1 - pi)).detach()
    a = torch.tensor([1.0, 5.0, -2.0], dtype=torch.float64)
    moment = 0.0
    for w, share in choices(pi.detach(), q):
        value = Bitflip(q).at(lambda z: a @ z, pi, torch.full((3,), 0.4).double(), torch.tensor(w))
        (per_pi,) = torch.autograd.grad(value, pi)
        moment += share * (per_pi * v).square().sum().item()
    shares = torch.tensor([share for _, share in choices(pi.detach(), q)])
    assert moment == pytest.approx(((a * v) ** 2 / shares).sum().item())


def test_saturated_gates_are_not_flipped() -> None:
    seen = []
    f = lambda z: seen.append(z) or z.sum()  # noqa: E731
    pi = torch.tensor([0.0, 1.0], requires_grad=True)
    for estimator in (Bitflip(), Bitflip("uniform"), LocalExpectation()):
        seen.clear()
        estimator(f, pi).backward()
        assert [z.tolist() for z in seen] == [[0, 1]]
    assert pi.grad.tolist() == [0, 0]


def test_a_gate_of_weight_0_is_never_picked_even_at_the_edges() -> None:
    weights = torch.tensor([0.0, 1.0, 0.0, 2.0, 0.0])
    found = [pick_gate(weights, torch.tensor(w)) for w in (0.0, 0.3, 1 / 3, 0.9, 1 - 2**-24, 1.0)]
    assert found == [1, 1, 3, 3, 3, 3]


def test_local_expectation_has_no_noise_of_the_gate_itself() -> None:
    """Var(s_1) of f = z1 z2 is Var(z2) (pi1 (1 - pi1))^2, whatever z1 is."""
    pi = torch.tensor([0.3, 0.5], dtype=torch.float64, requires_grad=True)
    for z in patterns(1, 2):
        value = LocalExpectation().at(lambda z: z[0] * z[1], pi, noise_for(z[0], pi))
        (estimate,) = torch.autograd.grad(value, pi)
        assert estimate.tolist() == pytest.approx([z[0, 1].item(), z[0, 0].item()])


def test_an_unknown_q_is_refused() -> None:
    with pytest.raises(ValueError, match="q must be 'variance' or 'uniform'; got 'p'"):
        Bitflip("p")


def test_ugc_does_not_flip_saturated_gates() -> None:
    seen = []
    f = lambda z: seen.append(z) or z.sum()  # noqa: E731
    pi = torch.tensor([0.0, 1.0, 0.0, 1.0], requires_grad=True)
    for w in (0.1, 0.4, 0.6, 0.9):
        UGC().at(f, pi, torch.full((4,), 0.5), torch.tensor(w)).backward()
    assert {tuple(z.tolist()) for z in seen} == {(0, 1, 0, 1)}
    assert pi.grad.tolist() == [0] * 4


@pytest.mark.parametrize("phi", [[-0.3, 0.05, 0.25], [-3.0, 0.05, 2.5]])
def test_among_several_processes_ugc_has_the_same_mean(
    phi: list[float], integral: Callable[..., Tensor], pretend_processes: Callable[[int], None]
) -> None:
    pretend_processes(2)
    test_the_mean_of_ugc_is_the_gradient(phi, integral)


@pytest.mark.parametrize("w", [0.1, 0.9])
def test_among_several_processes_ugc_always_flips(
    w: float, pretend_processes: Callable[[int], None]
) -> None:
    pretend_processes(2)
    test_ugc_flips_only_a_gate_that_is_near_0_or_1(w, 3)
