"""plan and sparsify on any model: what they leave unchanged, and what they cost."""

from typing import Any

import pytest
import torch
from tests.helpers.plans import Network, two_layers
from torch import Tensor, nn

from l0arm import Gated, sparsify
from l0arm.planning import PlanError, plan


def state(model: nn.Module) -> dict[str, Any]:
    tensors = {key: value.clone() for key, value in model.state_dict().items()}
    return {**tensors, **{f"{n} training": m.training for n, m in model.named_modules()}}


@pytest.mark.parametrize("name", ["mobilenet", "multi-head attention", "transformer encoder"])
def test_the_model_is_left_as_it_was(name: str, network: Network) -> None:
    model, inputs = network(name)
    model.train()
    next(model.children()).eval()
    before, modules = state(model), list(model.modules())
    plan(model, inputs)
    after = state(model)
    assert before.keys() == after.keys()
    assert all(torch.equal(torch.as_tensor(before[k]), torch.as_tensor(after[k])) for k in before)
    assert all(one is other for one, other in zip(modules, model.modules(), strict=True))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_random_numbers_are_left_alone() -> None:
    model, x = two_layers(), torch.rand(1, 4)
    before = torch.get_rng_state()
    plan(model, x)
    assert torch.equal(before, torch.get_rng_state())


def test_a_forward_that_writes_into_its_input_is_planned_and_the_input_kept() -> None:
    class Centering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            x.sub_(0.5).div_(2)
            return self.b(self.a(x).relu())

    x = torch.rand(3, 4)
    before = x.clone()
    gated = sparsify(Centering(), example_inputs=x, lam=0.0, initial=0.5)
    assert torch.equal(x, before)
    assert gated.groups[0].drops
    assert gated.compact() is not None  # with its certificate


def test_zero_groups_is_an_error_with_every_reason() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    with pytest.raises(PlanError) as caught:
        plan(model, torch.rand(2, 4))
    assert str(caught.value).splitlines() == [
        "nothing of this model can be gated:",
        "  0: layer_norm(4) in '1' mixes the units",
        "  2: an output of the model keeps its shape",
    ]


def test_a_gated_model_from_example_inputs() -> None:
    gated = sparsify(two_layers(), example_inputs=(torch.rand(1, 4),), lam=0.1, initial=0.95)
    assert isinstance(gated, Gated)
    assert gated.gates.probs.mean().item() == pytest.approx(0.95, abs=0.01)
    assert [group.name for group in gated.groups] == ["0", "2"]


def test_frozen_parameters_stay_frozen() -> None:
    model = two_layers()
    model[0].requires_grad_(False)
    gated = sparsify(model, example_inputs=torch.rand(1, 4), lam=0.0)
    assert [p.requires_grad for p in gated.compact().parameters()] == [False] * 2 + [True] * 4


def test_a_released_model_can_be_planned_again(network: Network) -> None:
    """Its attention has been replaced for good and now runs as it is."""
    model, inputs = network("multi-head attention")
    first = plan(model, inputs)
    with torch.no_grad():
        before = model.eval()(*inputs)
        released = sparsify(model, first, "l0-arm", lam=0.0).release()
        torch.testing.assert_close(released(*inputs), before, rtol=1e-12, atol=1e-12)
    again = plan(released, inputs)
    assert [e.execution for e in first.planned] == ["replaced", "as is"]
    assert [e.execution for e in again.planned] == ["as is", "as is"]
    assert [g.units for g in again.groups] == [g.units for g in first.groups]


class Deep(nn.Module):
    """Counts its passes over all copies."""

    passes = 0

    def __init__(self, depth: int) -> None:
        super().__init__()
        layers = [layer for _ in range(depth) for layer in (nn.Linear(6, 6), nn.Tanh())]
        self.layers = nn.Sequential(*layers, nn.Linear(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        Deep.passes += 1
        return self.layers(x)


def test_the_number_of_passes_does_not_grow_with_the_groups() -> None:
    passes = []
    for depth in (2, 30):
        Deep.passes = 0
        assert len(plan(Deep(depth), torch.rand(2, 6)).groups) == depth
        passes.append(Deep.passes)
    assert passes[0] == passes[1]


def test_a_layer_that_is_not_cut_may_have_a_weight_of_any_shape() -> None:
    class Ensemble(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.weight = nn.Parameter(torch.randn(3, 2, 2))
            self.bias = nn.Parameter(torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.weight).mean(0) + self.bias

    found = plan(nn.Sequential(*two_layers(), Ensemble()), torch.rand(4, 4))
    assert {entry.execution for entry in found.planned} == {"as is"}


def test_a_module_under_two_names_is_patched_under_the_first() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.i, self.o = nn.Conv2d(1, 8, 1), nn.Conv2d(8, 2, 1)
            self.dw = nn.Conv2d(8, 8, 3, padding=1, groups=8)
            self.again = self.dw

        def forward(self, x: Tensor) -> Tensor:
            return self.o(self.again(self.i(x)).relu())

    x = torch.rand(2, 1, 6, 6)
    gated = sparsify(Shared(), example_inputs=x, lam=0.0, initial=0.5)
    small = gated.compact()
    torch.testing.assert_close(small.eval()(x), gated.eval()(x))
