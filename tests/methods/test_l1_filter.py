"""L1 pruning closes the units with the smallest weights."""

import pytest
import torch

from l0arm import architecture, sparsify
from l0arm.methods import l1_filter
from l0arm.methods._l1_filter import PruneUnits
from l0arm.models import MLP, LeNet5


def test_the_units_with_the_largest_sums_of_weights_are_kept() -> None:
    gated = sparsify(LeNet5(), method=l1_filter())
    sums = gated.model.conv1.weight.detach().abs().sum((1, 2, 3))
    PruneUnits([0.4, 1.0, 1.0, 1.0])(gated, None)
    kept = gated.per_group(gated.deterministic())["conv1"] != 0
    assert int(kept.sum()) == 8
    assert sums[kept].min() > sums[~kept].max()


def test_flattened_inputs_are_closed_with_their_filters() -> None:
    gated = sparsify(LeNet5(), method=l1_filter())
    PruneUnits([1.0, 0.5, 1.0, 1.0])(gated, None)
    assert architecture(gated) == "20-25-400-500"


def test_a_group_keeps_at_least_one_unit() -> None:
    gated = sparsify(MLP((20, 16, 10)), method=l1_filter())
    PruneUnits({"fc1": 1.0, "fc2": 0.001})(gated, None)
    assert architecture(gated) == "20-1"


def test_pruned_units_get_no_gradient() -> None:
    gated = sparsify(MLP((20, 16, 10)), method=l1_filter())
    PruneUnits(0.5)(gated, None)
    closed = gated.per_group(gated.deterministic())["fc2"] == 0
    gated.loss(lambda: gated(torch.rand(4, 20)).square().sum()).backward()
    assert gated.phi.grad is None
    gradient = gated.model.fc1.weight.grad
    assert gradient is not None
    assert float(gradient[closed].abs().max()) == 0.0
    assert float(gradient[~closed].abs().max()) > 0.0


def test_stages_are_train_and_retrain() -> None:
    stages = l1_filter(keep=0.3, train=0.6, retrain_lr=0.1).stages
    assert [(s.name, s.share, s.lr) for s in stages] == [("train", 0.6, 1.0), ("retrain", 0.4, 0.1)]


def test_wrong_shares_are_refused() -> None:
    with pytest.raises(ValueError, match="keep is a share"):
        l1_filter(keep=1.5)
