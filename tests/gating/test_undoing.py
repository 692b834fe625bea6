"""A refusal leaves the model as it was, whatever was changed before it."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import l0arm
from l0arm import Gated, Group, Slice
from l0arm.gating.undoing import undone_if_refused
from l0arm.methods import l0_arm
from l0arm.models import MLP


def look(model: nn.Module) -> list[Any]:
    """What a user can see of every module: its kind, its hooks and all of its attributes."""
    return [
        (name, id(module), {k: copy.copy(v) for k, v in vars(module).items()})
        for name, module in model.named_modules()
    ]


def attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 1), nn.Linear(8, 2)).eval()


REFUSED: dict[str, dict[str, Any]] = {
    "no budget": {"budget": "0%"},
    "unknown budget": {"budget": {"macs": "40%"}},
    "unreachable budget": {"budget": "0.1%"},
    "strengths": {"lam": [1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3]},
    "threshold": {"lam": 1e-3, "threshold": 3},
    "execution": {"lam": 1e-3, "execution": "fast"},
    "no probabilities": {"method": "group-lasso", "lam": 1e-3, "budget": "40%"},
}


@pytest.mark.parametrize("options", REFUSED.values(), ids=REFUSED)
def test_a_refused_sparsify_leaves_the_model_as_it_was(options: dict[str, Any]) -> None:
    model, x = attention(), torch.randn(2, 3, 8)
    before = look(model)
    with pytest.raises(ValueError, match=r"budget|lam|threshold|execution"):
        l0arm.sparsify(model, example_inputs=x, **options)
    assert look(model) == before
    gated = l0arm.sparsify(model, example_inputs=x, budget="60%")
    assert isinstance(gated.model[0].layers[0].self_attn, l0arm.planning.HeadAttention)


def test_a_refused_gated_leaves_no_hooks() -> None:
    model = MLP((4, 3, 2))
    before = look(model)
    with pytest.raises(ValueError, match="lam has 3 entries"):
        Gated(model, model.groups(), l0_arm([0.1, 0.2, 0.3]))
    assert look(model) == before


def test_a_second_sparsify_leaves_the_hooks_of_the_first() -> None:
    model = MLP((4, 3, 2))
    gated = l0arm.sparsify(model, lam=0.0)
    with pytest.raises(ValueError, match="gated already"):
        l0arm.sparsify(model, [Group("h", 3, reads=(Slice("fc2.weight", 1),))], lam=0.0)
    x = torch.randn(5, 4)
    gated.phi.data.fill_(9.0)
    gated.phi.data[0] = -9.0
    gated.eval()
    assert torch.equal(gated(x), gated(x * torch.tensor([0.0, 1.0, 1.0, 1.0])))


def change_and_stop(model: nn.Sequential) -> None:
    with undone_if_refused(model):
        model.eval()
        model[1] = nn.Tanh()
        model[0].register_forward_hook(lambda *_: None)
        model[0].extra = 3
        raise KeyboardInterrupt


def test_an_interruption_is_undone_too() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    before = look(model)
    with pytest.raises(KeyboardInterrupt):
        change_and_stop(model)
    assert look(model) == before


def test_what_succeeds_stays() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with undone_if_refused(model):
        model[0] = nn.Linear(2, 3)
    assert model[0].out_features == 3
