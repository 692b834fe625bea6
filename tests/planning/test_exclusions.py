"""Layers that stay out: by the user's patterns, or because of what holds their weights."""

from typing import Any

import pytest
import torch
from tests.helpers.plans import plan_or_reasons, reasons, two_layers
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from l0arm.planning import PlanError, plan


def test_layers_are_chosen_by_glob_and_by_type() -> None:
    x = torch.rand(1, 4)
    names = [group.name for group in plan(two_layers(), x).groups]
    assert names == ["0", "2"]
    only = plan(two_layers(), x, include="2*")
    assert [group.name for group in only.groups] == ["2"]
    assert reasons(only)["0"] == "left out by include"
    without = plan(two_layers(), x, exclude=["0"])
    assert [group.name for group in without.groups] == ["2"]
    assert reasons(without)["0"] == "'0' is excluded"
    assert [group.name for group in plan(two_layers(), x, include=nn.Linear).groups] == names


def test_nothing_of_an_excluded_layer_is_cut() -> None:
    """Neither its rows nor, so that they stay, the units it reads."""
    found = plan(two_layers(), torch.rand(1, 4), exclude="4")
    assert [group.name for group in found.groups] == ["0"]
    assert all(piece.tensor != "4.weight" for group in found.groups for piece in group.reads)


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(PlanError, match=r"pattern 'fc\*' matches no layer; nearest names: "):
        plan(two_layers(), torch.rand(1, 4), include="fc*")
    with pytest.raises(PlanError, match="no layer of type Conv2d; there are Linear, ReLU, Sequent"):
        plan(two_layers(), torch.rand(1, 4), exclude=nn.Conv2d)


@pytest.mark.parametrize("name", ["include", "exclude"])
@pytest.mark.parametrize("pattern", [3, ["0", 3], nn.ReLU(), int])
def test_patterns_are_names_or_types(name: str, pattern: Any) -> None:
    wanted: Any = {name: pattern}
    with pytest.raises(PlanError, match=rf"^{name} takes names of layers .* or their types; got"):
        plan(two_layers(), torch.rand(1, 4), **wanted)


def test_parametrized_layers_are_refused() -> None:
    model = two_layers()
    parametrizations.spectral_norm(model[2])
    skipped = reasons(plan_or_reasons(model, torch.rand(2, 4)))
    assert skipped["2.parametrizations.weight"] == (
        "'2' is parametrized: its weight is computed, not held"
    )


def test_reading_a_weight_that_is_computed_does_not_move_it() -> None:
    """Spectral norm takes a step of its power iteration whenever its weight is read."""
    model = two_layers()
    model[2] = parametrizations.spectral_norm(model[2])
    model.append(nn.ReLU()).append(nn.Linear(2, 3))
    found = plan(model.train(), torch.rand(4, 4))
    assert {entry.group.name: entry.execution for entry in found.planned} == {"4": "as is"}


def test_layers_with_lora_are_refused() -> None:
    class Lora(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(8, 6)
            self.lora_A, self.lora_B = nn.Linear(8, 2), nn.Linear(2, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + self.lora_B(self.lora_A(x))

    model = nn.Sequential(nn.Linear(4, 8), Lora(), nn.ReLU(), nn.Linear(6, 5), nn.Linear(5, 2))
    found = plan(model, torch.rand(2, 4))
    assert [group.name for group in found.groups] == ["3"]
    assert reasons(found)["1.base"] == "'1' carries LoRA adapters: merge them first"


def test_attention_that_cannot_be_replaced_is_refused() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, add_zero_attn=True)
            self.a, self.b = nn.Linear(8, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.relu(self.a(self.attention(x, x, x)[0])))

    found = plan(Plain(), torch.rand(5, 2, 8))
    assert [group.name for group in found.groups] == ["a"]
    assert "of a kind that cannot be replaced" in reasons(found)["attention"]


class Scaled(nn.Module):
    """Two layers beside a tensor of another kind, which their values may meet."""

    def __init__(self, scale: Tensor, *, used: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)
        self.scale, self.used = nn.Parameter(scale, requires_grad=False), used

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        h = (h * self.scale).abs() if self.used else h
        out: Tensor = self.b(h)
        return out


KINDS = {
    "complex": (torch.cfloat, "'scale' is complex: a gate opens and closes real weights"),
    "integers": (torch.int64, "'scale' holds integers: a gate opens and closes real weights"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_that_is_not_real_leaves_the_others_alone(kind: str) -> None:
    dtype, reason = KINDS[kind]
    beside = plan(Scaled(torch.ones(1, 8, dtype=dtype), used=False), torch.rand(3, 4))
    assert [group.name for group in beside.groups] == ["a"]
    assert reasons(beside)["scale"] == reason
    within = reasons(
        plan_or_reasons(Scaled(torch.ones(1, 8, dtype=dtype), used=True), torch.rand(3, 4))
    )
    assert within["scale"] == reason
    assert reason in within["a"]


def test_a_packed_weight_refuses_its_layer_only() -> None:
    class Packed(nn.Parameter):
        pass

    model = two_layers()
    model.table = Packed(torch.ones(3, 3), requires_grad=False)
    model[2].weight = Packed(model[2].weight.data, requires_grad=False)
    skipped = reasons(plan_or_reasons(model, torch.rand(2, 4)))
    assert skipped["2"] == "'2' is quantised: its weight is packed"
    assert skipped["table"] == "'Sequential' is quantised: its weight is packed"
    assert "is quantised" not in skipped["4"]


def test_a_model_whose_output_depends_on_no_parameter() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    with pytest.raises(PlanError, match="unused: not used when the model runs on the example"):
        plan(Idle(), torch.rand(1, 4))
