"""``prune(train="gates")``: units are chosen by forward passes alone, and no weight is changed."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import l0arm

X = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
BATCHES = [(X[i : i + 30], Y[i : i + 30]) for i in range(0, 120, 30)]


def network() -> nn.Module:
    """Of 12 units, the first two decide the answer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 2))
    with torch.no_grad():
        model[0].weight[0] = torch.tensor([3.0, 0, 0, 0, 0, 0])
        model[0].weight[1] = torch.tensor([-3.0, 0, 0, 0, 0, 0])
        model[0].bias[:2] = 0.0
        model[3].weight.mul_(0.1)
        model[3].weight[:, 0] = torch.tensor([-2.0, 2.0])
        model[3].weight[:, 1] = torch.tensor([2.0, -2.0])
        model[3].bias.zero_()
    return model.eval()


def errors(model: nn.Module, batch: tuple[Tensor, Tensor]) -> float:
    return (model(batch[0]).argmax(1) != batch[1]).double().mean().item()


def accuracy(model: nn.Module) -> float:
    with torch.no_grad():
        return (model(X).argmax(1) == Y).float().mean().item()


def pruned(model: nn.Module, loss: Any = errors, **options: Any) -> l0arm.PruneResult:
    settings = {"budget": "30%", "steps": 120, "seed": 0, "quiet": True, "train": "gates"}
    return l0arm.prune(model, BATCHES, loss, **(settings | options))


def test_a_frozen_model_is_cut_by_the_number_of_errors() -> None:
    model = network().requires_grad_(False)
    result = pruned(model, validate=accuracy)
    assert result.small.parameters <= 0.3 * result.dense.parameters
    assert result.small.score == result.dense.score
    assert {row["stage"] for row in result.history} == {"learn"}
    kept = result.model[0].weight
    assert any(torch.equal(row, model[0].weight[0]) for row in kept)  # as it was, bit for bit


def test_no_graph_is_made_and_no_weight_or_statistic_changes() -> None:
    model, saved, modes = network(), list[Tensor](), set[bool]()
    state = {name: value.clone() for name, value in model.state_dict().items()}

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inner = model.model if isinstance(model, l0arm.Gated) else model
        modes.add(inner.training)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            return F.cross_entropy(model(batch[0]), batch[1])

    result = pruned(model, loss)
    assert not saved
    assert modes == {False}
    small = result.model.state_dict()
    for name in ("1.running_mean", "1.running_var", "0.weight"):
        rows = {tuple(row.flatten().tolist()) for row in state[name]}
        assert all(tuple(row.flatten().tolist()) in rows for row in small[name])


def test_what_learn_leaves_is_tuned() -> None:
    model = network()
    result = pruned(model, F.cross_entropy, learn=0.75)
    assert [row["stage"] for row in result.history].count("tune") == 30
    rows = {tuple(row.tolist()) for row in model[0].weight}
    assert not all(tuple(row.tolist()) in rows for row in result.model[0].weight)


def test_it_resumes_bit_for_bit(tmp_path: Path) -> None:
    calls = list[int]()

    def fails(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        calls.append(1)
        if len(calls) == 100:
            raise KeyboardInterrupt
        return F.cross_entropy(model(batch[0]), batch[1])

    def whole(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    expected = pruned(network(), whole)
    with pytest.raises(KeyboardInterrupt):
        pruned(network(), fails, checkpoint=tmp_path)
    again = pruned(network(), whole, checkpoint=tmp_path)
    assert again.history == expected.history
    for ours, theirs in zip(again.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": "weights"}, "train must be 'all' or 'gates'"),
        ({"train": "all"}, "train='gates' leaves its weights as they are"),
        ({"learn": 0.5}, "nothing can train"),
        ({"precision": "fp16"}, "no gradients to scale"),
    ],
)
def test_bad_input_is_refused(options: dict[str, Any], message: str) -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    with pytest.raises(ValueError, match=message):
        pruned(network().requires_grad_(False), loss, **options)


@pytest.mark.parametrize("value", [float("nan"), None, "0.5", torch.zeros(2)])
def test_a_loss_that_is_no_finite_number_is_refused(value: Any) -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Any:
        return (model(batch[0]), value)[1]

    with pytest.raises(ValueError, match="must be a finite number"):
        pruned(network(), loss)
