"""When the second draw is evaluated, and how."""

import pytest
import torch
from torch import Tensor

from l0arm.estimators import AR, ARM, DisARM, Estimator

pairs = pytest.mark.parametrize("estimator", [ARM(), DisARM()], ids=["arm", "disarm"])
AGREE, DIFFER = torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.05])  # u, for gates open at 0.9


def evaluations(estimator: Estimator, u: Tensor) -> list[tuple[list[float], bool]]:
    """The draws that f sees, in order, each with whether a graph is kept."""
    seen = []

    def f(z: Tensor) -> Tensor:
        seen.append((z.tolist(), torch.is_grad_enabled()))
        return z.sum()

    estimator.at(f, torch.full((2,), 0.9, requires_grad=True), u)
    return seen


def distributed(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: processes)


@pytest.mark.parametrize("u", [AGREE, DIFFER])
def test_ar_evaluates_once(u: Tensor) -> None:
    assert evaluations(AR(), u) == [([1, 1], True)]


@pairs
def test_the_first_draw_keeps_a_graph_and_the_second_does_not(estimator: Estimator) -> None:
    assert evaluations(estimator, DIFFER) == [([1, 1], True), ([1, 0], False)]


@pairs
def test_draws_that_coincide_are_evaluated_once(estimator: Estimator) -> None:
    assert evaluations(estimator, AGREE) == [([1, 1], True)]


@pairs
def test_among_several_processes_nothing_is_skipped(
    estimator: Estimator, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed(monkeypatch, processes=2)
    assert evaluations(estimator, AGREE) == [([1, 1], True), ([1, 1], False)]


@pairs
def test_a_process_group_of_one_skips(
    estimator: Estimator, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed(monkeypatch, processes=1)
    assert evaluations(estimator, AGREE) == [([1, 1], True)]


@pairs
def test_a_skipped_evaluation_means_gradient_0(estimator: Estimator) -> None:
    pi = torch.full((2,), 0.9, requires_grad=True)
    estimator.at(lambda z: z.sum(), pi, AGREE).backward()
    assert pi.grad.tolist() == [0, 0]
