"""What can be captured as a graph, and what is said about a model or inputs that cannot."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.helpers.plans import TwoOutputs, two_layers
from torch import Tensor, nn

from l0arm import sparsify
from l0arm.models import MLP
from l0arm.planning import PlanError, plan


def test_an_unknown_output_is_answered_with_the_known_ones() -> None:
    with pytest.raises(PlanError, match=r"no output 'logit'; there are logits, hidden"):
        plan(TwoOutputs(), torch.rand(3, 4), outputs=["logit"])


@pytest.mark.parametrize("outputs", ["logits", ["logits"]])
def test_one_output_needs_no_list(outputs: Any) -> None:
    found = plan(TwoOutputs(), torch.rand(1, 4), outputs=outputs)
    assert found.outputs == ("logits",)
    assert [g.name for g in found.groups] == [
        g.name for g in plan(TwoOutputs(), torch.rand(1, 4), outputs=("logits",)).groups
    ]


def test_outputs_are_names_or_numbers() -> None:
    assert plan(two_layers(), torch.rand(1, 4), outputs=0).outputs == ("0",)
    with pytest.raises(PlanError, match=r"outputs takes keys or numbers of outputs; got 0\.5"):
        plan(two_layers(), torch.rand(1, 4), outputs=0.5)  # type: ignore[arg-type]


def test_only_plain_models_are_planned() -> None:
    with pytest.raises(PlanError, match="gated already; plan the plain model, or compact it"):
        plan(sparsify(MLP((4, 3, 2)), lam=0.1), torch.rand(1, 4))
    with pytest.raises(PlanError, match="ReLU has no parameters: there is nothing to gate"):
        plan(nn.ReLU(), torch.rand(1, 4))
    with pytest.raises(TypeError, match=r"plan needs an nn\.Module, got function"):
        plan(lambda x: x, torch.rand(1, 4))  # type: ignore[arg-type]


def test_a_plain_model_with_the_gates_of_another_is_refused() -> None:
    model, x = two_layers(), torch.rand(1, 4)
    sparsify(model, example_inputs=x, lam=0.1)
    with pytest.raises(ValueError, match="is gated already by another Gated"):
        plan(model, x)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_rewritten_weights_are_refused() -> None:
    model = two_layers()
    torch.nn.utils.weight_norm(model[2])
    with pytest.raises(PlanError, match="weight of '2' is rewritten before each call"):
        plan(model, torch.rand(2, 4))


def test_weights_without_values_are_refused() -> None:
    with torch.device("meta"):
        model = two_layers()
    with pytest.raises(PlanError, match=r"'0\.weight' is on the meta device .*to_empty") as caught:
        plan(model, torch.rand(1, 4))
    assert len(str(caught.value).splitlines()) == 1
    lazy = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LazyLinear(2))
    with pytest.raises(PlanError, match=r"'2\.weight' has no shape yet .*run the model once"):
        plan(lazy, torch.rand(1, 4))


@pytest.mark.parametrize("x", [torch.rand(2, 5), torch.randint(3, (2, 4))], ids=["shape", "dtype"])
def test_inputs_that_do_not_fit_are_an_error(x: Tensor) -> None:
    with pytest.raises(
        PlanError, match="does not run on the example inputs: RuntimeError"
    ) as caught:
        plan(two_layers(), x)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("x", "what"),
    [
        (torch.zeros(0, 4), "empty"),
        (torch.full((2, 4), torch.nan), "NaN or infinite everywhere"),
        (torch.full((2, 4), torch.inf), "NaN or infinite everywhere"),
    ],
)
def test_an_example_without_a_number_in_the_output_is_refused(x: Tensor, what: str) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(PlanError, match=f"the output .* is {what}: nothing can be tried"):
        plan(net, x)


def test_control_flow_on_data_is_explained_in_one_line() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x)) if x.sum() > 0 else self.b(-self.a(x))

    with pytest.raises(PlanError, match=r"torch\.export cannot capture the model") as caught:
        plan(Branch(), torch.rand(2, 4))
    assert len(str(caught.value).splitlines()) == 1
    assert "Control flow that depends on data has no graph" in str(caught.value)


@dataclass
class Answer:
    logits: Tensor


@dataclass
class Registered:
    logits: Tensor


class Answers(nn.Sequential):
    def forward(self, x: Tensor) -> Any:
        return (Registered if self.registered else Answer)(super().forward(x))


def test_a_dataclass_among_the_outputs_must_be_registered() -> None:
    model = Answers(*two_layers())
    model.registered = False
    with pytest.raises(
        PlanError, match=r"returns Answer, .*torch\.export\.register_dataclass\(Answer"
    ) as caught:
        plan(model, torch.rand(1, 4))
    assert "depends on data" not in str(caught.value)
    model.registered = True
    torch.export.register_dataclass(Registered)
    found = plan(model, torch.rand(1, 4))
    assert [group.name for group in found.groups] == ["0", "2"]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_control_flow_is_blamed_only_where_there_is_some() -> None:
    class Through(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return torch.from_numpy(super().forward(x).numpy())

    with pytest.raises(PlanError, match=r"cannot capture the model: .*write the groups") as caught:
        plan(Through(*two_layers()), torch.rand(1, 4))
    assert "depends on data" not in str(caught.value)
    with pytest.raises(PlanError, match=r"a ScriptModule .*plan the nn\.Module it was made from"):
        plan(torch.jit.trace(two_layers(), torch.rand(1, 4)), torch.rand(1, 4))
