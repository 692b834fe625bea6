"""The valley of a histogram of gate probabilities."""

import pytest
import torch

from l0arm.gates import valley


def test_between_two_spikes_it_is_the_middle_of_the_gap() -> None:
    assert valley(torch.tensor([0.02, 0.02, 0.98, 0.98])) == pytest.approx(0.5)
    assert valley(torch.tensor([0.22, 0.22, 0.98, 0.98])) == pytest.approx(0.6)  # 0.25 to 0.95


def test_stray_gates_move_it_into_the_longest_empty_stretch() -> None:
    pi = torch.tensor([0.02] * 5 + [0.41] + [0.98] * 5)
    assert valley(pi) == pytest.approx((0.45 + 0.95) / 2)


def test_without_an_empty_stretch_it_is_the_least_populated_one() -> None:
    counts = torch.tensor([9, 4, 3, 1, 8])
    pi = torch.repeat_interleave(torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9]), counts)
    assert valley(pi, bins=5) == pytest.approx(0.7)


def test_of_two_equal_stretches_the_first_is_used() -> None:
    pi = torch.tensor([0.02] * 3 + [0.47] + [0.93] * 3)  # 0.05 to 0.45, and 0.5 to 0.9
    assert valley(pi) == pytest.approx(0.25)


def test_of_two_equal_spikes_the_first_is_used() -> None:
    assert valley(torch.tensor([0.02, 0.32, 0.52])) == pytest.approx((0.05 + 0.3) / 2)
    assert valley(torch.tensor([0.02, 0.12, 0.52, 0.98])) == pytest.approx((0.15 + 0.5) / 2)


@pytest.mark.parametrize("pi", [[0.01, 0.2, 0.49], [0.51, 0.8, 0.99], [0.3], [1.0, 1.0]])
def test_with_gates_on_one_side_only_tau_is_one_half(pi: list[float]) -> None:
    assert valley(torch.tensor(pi)) == 0.5


def test_between_neighbouring_spikes_tau_is_one_half() -> None:
    assert valley(torch.tensor([0.48, 0.49, 0.51, 0.52])) == 0.5


def test_saturated_gates_count() -> None:
    assert valley(torch.tensor([0.0, 0.0, 1.0])) == pytest.approx(0.5)
    assert valley(torch.tensor([0.0, 0.0, 0.52, 0.52, 1.0])) == pytest.approx((0.05 + 0.5) / 2)
