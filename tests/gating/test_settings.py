"""Settings are one value: validated, passed on whole, and saved where they count."""

import copy
import json
from dataclasses import fields
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from l0arm import Gated, shrink, sparsify
from l0arm.costs.budget import Budget
from l0arm.gating.settings import Settings
from l0arm.models import MLP

OTHERS: dict[str, Any] = {
    "threshold": 0.3,
    "width_multiple": 2,
    "penalty_weight": 0.25,
    "outputs": ("0",),
    "execution": "masked",
    "sharing": False,
    "averaged_elsewhere": True,
}
SAVED = {"threshold", "width_multiple", "penalty_weight", "outputs"}


def gated_mlp() -> Gated:
    return sparsify(MLP((6, 5, 3)), example_inputs=torch.rand(2, 6), lam=1e-3)


def changed() -> Gated:
    gated = gated_mlp()
    for name, value in OTHERS.items():
        setattr(gated, name, value)
    return gated


def test_every_setting_is_an_attribute_of_the_network() -> None:
    gated = changed()
    assert {f.name for f in fields(Settings)} == {*OTHERS, "example"}
    for name, value in OTHERS.items():
        assert getattr(gated, name) == getattr(gated.settings, name) == value
        assert value != getattr(Settings(), name)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("threshold", 1.0, "threshold must lie strictly between 0 and 1"),
        ("execution", "fast", "execution must be 'sliced' or 'masked'"),
        ("width_multiple", 0, "width_multiple must be an integer >= 1"),
    ],
)
def test_a_bad_value_is_refused_and_changes_nothing(name: str, value: Any, message: str) -> None:
    gated = gated_mlp()
    before = gated.settings
    with pytest.raises(ValueError, match=message):
        setattr(gated, name, value)
    assert gated.settings is before


def test_shrink_and_deepcopy_pass_them_on_whole() -> None:
    gated = changed()
    with torch.no_grad():
        gated.phi[:2] = -3.0
    assert shrink(gated).settings is gated.settings
    twin = copy.deepcopy(gated)
    assert {n: getattr(twin, n) for n in OTHERS} == OTHERS
    assert twin.example is not None
    assert torch.equal(twin.example.args[0], gated.example.args[0])


def test_a_checkpoint_holds_those_that_decide_which_network_it_is() -> None:
    other = gated_mlp()
    other.load_state_dict(changed().state_dict())
    for name, value in OTHERS.items():
        expected = value if name in SAVED else getattr(Settings(), name)
        assert getattr(other, name) == expected, name


def test_the_threshold_that_was_set_gives_the_same_architecture_after_loading() -> None:
    gated = gated_mlp()
    with torch.no_grad():
        gated.phi.copy_(torch.logit(torch.linspace(0.05, 0.95, len(gated.phi))) / 7)
    gated.threshold = 0.9
    other = gated_mlp()
    other.load_state_dict(gated.state_dict())
    assert torch.equal(other.deterministic(), gated.deterministic())


def test_a_checkpoint_of_an_earlier_version_loads_with_a_message() -> None:
    gated, other = changed(), gated_mlp()
    state = gated.state_dict()
    del state["_extra_state"]
    with pytest.warns(UserWarning, match="has no settings .* the network keeps its own"):
        other.load_state_dict(state)
    assert other.threshold == 0.5
    assert torch.equal(other.phi, gated.phi)


def test_settings_that_cannot_be_read_are_refused() -> None:
    state = gated_mlp().state_dict()
    text = json.dumps({"threshold": 7, "outputs": []}).encode()
    state["_extra_state"] = torch.tensor(list(text), dtype=torch.uint8)
    with pytest.raises(ValueError, match="the checkpoint's settings cannot be read: threshold"):
        gated_mlp().load_state_dict(state)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "fused", "RMSprop"])
def test_the_budget_follows_optimizer_steps_and_not_micro_batches(kind: str) -> None:
    """Gradients of four micro-batches make one step, so the multiplier moves once."""
    gated = sparsify(MLP((6, 20, 3)), budget="50%", initial=0.9)
    make: Any = torch.optim.Adam if kind == "fused" else getattr(torch.optim, kind)
    options = {"fused": True} if kind == "fused" else {}
    optimizer = make(gated.parameter_groups(lr=1e-2), **options)
    x, y = torch.rand(4, 6), torch.arange(4) % 3
    for step in range(3):
        for _ in range(4):
            gated.loss(lambda: F.cross_entropy(gated(x), y)).backward()
        assert isinstance(gated.budget, Budget)
        assert int(gated.budget.steps) == step + 1
        optimizer.step()
        optimizer.zero_grad()
