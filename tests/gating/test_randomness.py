"""Random numbers: every evaluation of a loss sees one state, and the stream goes on after one."""

from typing import Any

import pytest
import torch
from torch import Tensor

from l0arm import Gated, sparsify
from l0arm.gating.randomness import SharedRandomness
from l0arm.models import MLP


@pytest.fixture
def gated() -> Gated:
    return sparsify(MLP((4, 8, 2)), method="l0-arm", lam=0.1)


def recording(gated: Gated, seen: list[float]) -> Any:
    def closure() -> Tensor:
        seen.append(torch.rand(()).item())
        return gated(torch.ones(3, 4)).square().mean()

    return closure


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_both_evaluations_see_the_same_numbers(gated: Gated) -> None:
    seen: list[float] = []
    gated.loss(recording(gated, seen), generator())
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_afterwards_the_stream_is_one_evaluation_further(gated: Gated) -> None:
    torch.manual_seed(7)
    torch.rand(())
    expected = torch.get_rng_state()
    torch.manual_seed(7)
    gated.loss(recording(gated, []), generator())
    assert torch.equal(torch.get_rng_state(), expected)


def test_a_second_pass_left_out_changes_nothing_in_the_stream(gated: Gated) -> None:
    states = []
    for phi in (0.0, 20.0):  # at 20, both draws are all open: one evaluation
        gated.phi.data.fill_(phi)
        seen: list[float] = []
        torch.manual_seed(7)
        gated.loss(recording(gated, seen), generator())
        states.append((torch.get_rng_state(), seen[0], len(seen)))
    assert torch.equal(states[0][0], states[1][0])
    assert states[0][1] == states[1][1]
    assert (states[0][2], states[1][2]) == (2, 1)


def test_the_next_loss_sees_new_numbers(gated: Gated) -> None:
    seen: list[float] = []
    for _ in range(2):
        gated.loss(recording(gated, seen), generator())
    assert seen[0] != seen[2]


def test_an_exception_in_a_later_evaluation_restores_the_stream() -> None:
    shared = SharedRandomness(torch.device("cpu"))
    with shared:
        torch.rand(3)
    after = torch.get_rng_state()
    with pytest.raises(RuntimeError), shared:
        torch.rand(5).view(2)
    assert torch.equal(torch.get_rng_state(), after)


def test_three_evaluations_see_the_same_numbers() -> None:
    shared = SharedRandomness(torch.device("cpu"))
    seen = []
    for _ in range(3):
        with shared:
            seen.append(torch.rand(()).item())
    assert len(set(seen)) == 1
