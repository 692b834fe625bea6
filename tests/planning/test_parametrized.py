"""Weights that a parametrization computes: weight_norm is cut by slices, others stay."""

import pytest
import torch
from tests.helpers.cut_networks import check_cut, described, doubled
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from l0arm import PlanError, plan


def test_rows_of_a_normalised_weight_are_cut() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(weight_norm(nn.Linear(5, 8)), nn.ReLU(), nn.Linear(8, 3))
    found = check_cut(*doubled(model, torch.randn(4, 5)))
    assert described(found) == {"0": "8 as is"}


def test_filters_are_cut_and_the_sizes_of_the_layer_are_right() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        weight_norm(nn.Conv1d(2, 6, 3)), nn.ReLU(), nn.Flatten(1), nn.Linear(18, 3)
    )
    found = check_cut(*doubled(model, torch.randn(4, 2, 5)))
    assert described(found) == {"0": "6 as is"}


def test_columns_of_a_normalised_weight_stay() -> None:
    """Without a column, the length of a row would be another."""
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), weight_norm(nn.Linear(8, 3)))
    with pytest.raises(PlanError, match="0: linear in '2' reads the units by a weight that is"):
        plan(model, torch.randn(4, 5))


def test_other_parametrizations_stay_and_say_why() -> None:
    model = nn.Sequential(spectral_norm(nn.Linear(5, 8)), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(PlanError, match="'0' is parametrized: its weight is computed, not held"):
        plan(model, torch.randn(4, 5))
