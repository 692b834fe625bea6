"""Magnitude pruning keeps the largest weights, and the optimizer does not revive the others."""

import pytest
import torch
import torch.nn.functional as F

from l0arm import Gated, prune_rate, sparsify
from l0arm.methods import magnitude
from l0arm.methods._magnitude import Prune
from l0arm.models import MLP


def gated_mlp(**options: object) -> Gated:
    return sparsify(MLP((20, 16, 10)), method=magnitude(**options))


def steps(gated: Gated, optimizer: torch.optim.Optimizer, count: int) -> None:
    for _ in range(count):
        x, y = torch.rand(8, 20), torch.randint(10, (8,))
        loss = gated.loss(lambda x=x, y=y: F.cross_entropy(gated(x), y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        gated.method.after_step(gated, optimizer)


def test_the_largest_weights_of_each_layer_are_kept() -> None:
    gated = gated_mlp(keep=[0.25, 0.5])
    before = {k: p.detach().clone() for k, p in gated.model.named_parameters()}
    Prune([0.25, 0.5], 1.0)(gated, None)
    for name, share in (("fc1.weight", 0.25), ("fc2.weight", 0.5)):
        now, old = gated.model.get_parameter(name), before[name]
        kept = now != 0
        assert int(kept.sum()) == share * old.numel()
        assert torch.equal(now[kept], old[kept])
        assert old[kept].abs().min() > old[~kept].abs().max()


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda groups: torch.optim.Adam(groups, lr=0.05, weight_decay=0.1),
        lambda groups: torch.optim.SGD(groups, lr=0.5, momentum=0.9),
    ],
    ids=["adam", "sgd"],
)
def test_masked_weights_and_their_averages_stay_0_after_every_step(optimizer: type) -> None:
    gated = gated_mlp()
    made = optimizer(gated.parameter_groups(lr=0.05))
    steps(gated, made, 2)  # moving averages for weights that will be removed
    Prune(0.2, 1.0)(gated, None)
    masks = {name: gated.model.get_parameter(name) != 0 for name in ("fc1.weight", "fc2.weight")}
    for _ in range(3):
        steps(gated, made, 1)
        for name, mask in masks.items():
            weight = gated.model.get_parameter(name)
            assert torch.equal(weight != 0, mask)
            averages = [v for v in made.state[weight].values() if v.shape == weight.shape]
            assert averages
            assert all(float(v[~mask].abs().max()) == 0.0 for v in averages)


def test_rounds_prune_to_the_share_step_by_step() -> None:
    method = magnitude(keep=0.125, rounds=3)
    assert [stage.name for stage in method.stages] == ["train", "prune 1", "prune 2", "prune 3"]
    assert [stage.lr for stage in method.stages] == [1.0, 0.1, 0.1, 0.1]
    gated, left = sparsify(MLP((20, 16, 10)), method=method), []
    for stage in method.stages:
        if stage.enter is not None:
            stage.enter(gated, None)
        left.append(int(gated.model.fc1.weight.count_nonzero()))
    assert left == [320, 160, 80, 40]


def test_units_left_without_weights_are_closed_and_cut_out() -> None:
    gated = gated_mlp()
    gated.model.fc1.weight.data[3] *= 1e-6
    gated.model.fc1.weight.data[:, 7] *= 1e-6
    Prune(0.8, 1.0)(gated, None)
    alive = gated.per_group(gated.deterministic())
    assert (alive["fc1"][7], alive["fc2"][3]) == (0.0, 0.0)
    small = gated.compact()
    assert small.fc2.in_features <= 15
    nonzero = 320 * 0.8 + 160 * 0.8
    assert prune_rate(gated, "realised") >= 100 * (1 - nonzero / 480) - 1e-9


def test_masks_are_saved() -> None:
    gated, twin = gated_mlp(), gated_mlp()
    Prune(0.3, 1.0)(gated, None)
    twin.load_state_dict(gated.state_dict())
    twin.model.fc1.weight.data.fill_(1.0)
    optimizer = torch.optim.SGD(twin.parameter_groups(lr=0.1))
    twin.method.after_step(twin, optimizer)
    assert torch.equal(twin.model.fc1.weight != 0, gated.model.fc1.weight != 0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"keep": 0.0}, r"keep is a share in \(0, 1\]"),
        ({"keep": [0.5, 1.5]}, r"keep is a share in \(0, 1\]"),
        ({"keep": -0.5}, "finite number >= 0"),
        ({"rounds": 0}, "rounds of pruning must be an integer >= 1"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        magnitude(**wrong)
