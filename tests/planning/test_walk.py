"""What the walk through the graph finds: which layers an operator, a norm or an output pins."""

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.plans import Network, TwoOutputs, reasons, two_layers
from torch import Tensor, nn

from l0arm import Borrow, sparsify
from l0arm.planning import PlanError, plan


def test_the_output_layer_keeps_its_shape() -> None:
    found = plan(two_layers(), torch.rand(1, 4))
    assert reasons(found) == {"4": "an output of the model keeps its shape"}


def test_only_selected_outputs_keep_their_shape() -> None:
    model, x = TwoOutputs().double(), torch.rand(3, 4).double()
    with pytest.raises(PlanError, match="an output of the model keeps its shape"):
        plan(model, x)
    found = plan(model, x, outputs=["logits"])
    assert [(g.name, g.units) for g in found.groups] == [("a", 8)]
    gated = sparsify(model, found, "l0-arm", lam=0.0)
    gated.phi.data = torch.tensor([9.0] * 3 + [-9.0] * 5)
    small = gated.compact()
    assert small(x)["logits"].shape == (3, 2)
    assert small(x)["hidden"].shape == (3, 3)


def test_an_operator_without_a_rule_pins_what_it_touches() -> None:
    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(8, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(torch.relu(self.b(self.a(x).cummax(-1).values)))

    found = plan(Sorted(), torch.rand(2, 4))
    assert [group.name for group in found.groups] == ["b"]
    assert reasons(found)["a"] == "aten.cummax.default has no rule (cummax)"


def test_a_layer_norm_is_the_reason_for_a_residual_stream(network: Network) -> None:
    skipped = reasons(plan(*network("mixer")))
    assert skipped["patch"] == skipped["channel.2"] == "layer_norm(8) in 'norm1' mixes the units"


def test_a_weight_read_outside_of_its_module_is_borrowed() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(8, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.relu(self.a(x))
            return self.c(torch.relu(F.linear(hidden, self.b.weight)))

    found = plan(Reader(), torch.rand(2, 4))
    borrowed = (Borrow("", "b.weight"),)
    assert [(g.name, g.units, g.borrows) for g in found.groups] == [
        ("a", 8, borrowed),
        ("b", 6, borrowed),
    ]


class Idle(nn.Module):
    """Layers whose results are unused: one reads units in use, two read only each other."""

    def __init__(self, mixes: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.unused = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 5)
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)
        self.mixes = mixes

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.a(x))
        self.unused(hidden.softmax(-1) if self.mixes else hidden)
        self.second(self.first(x))
        return self.b(hidden)


@pytest.mark.parametrize("mixes", [False, True])
def test_a_call_whose_result_is_unused_is_cut_too(mixes: bool) -> None:
    model, x = Idle(mixes), torch.randn(3, 4)
    found = plan(model, x)
    (entry,) = found.planned
    assert (entry.group.name, entry.execution) == ("a", "as is")
    assert {piece.tensor for piece in entry.group.reads} == {"b.weight", "unused.weight"}
    skipped = reasons(found)
    assert skipped["unused"] == skipped["first"] == "not used when the model runs on the example"
    gated = sparsify(model, found, "l0-arm", lam=0.0, example_inputs=x)
    gated.phi.data = torch.tensor([9.0, -9.0] * 4)
    small = gated.compact()
    assert (small.a.out_features, small.unused.in_features) == (4, 4)
