"""plan: what it accepts, what it leaves alone and why, and what it says to a wrong use."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from l0arm import Gated, sparsify
from l0arm.models import MLP
from l0arm.planning import Plan, PlanError, Skipped, plan

Network = Callable[[str], tuple[nn.Module, tuple[Any, ...]]]


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))


def reasons(found: Any) -> dict[str, str]:
    return {entry.layer: entry.reason for entry in found.skipped}


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


def test_the_output_layer_keeps_its_shape() -> None:
    found = plan(two_layers(), torch.rand(1, 4))
    assert reasons(found) == {"4": "an output of the model keeps its shape"}


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.a(x))
        return {"logits": self.b(hidden), "hidden": hidden}


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


def test_an_unknown_output_is_answered_with_the_known_ones() -> None:
    with pytest.raises(PlanError, match=r"no output 'logit'; there are logits, hidden"):
        plan(TwoOutputs(), torch.rand(3, 4), outputs=["logit"])


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


def test_a_pattern_that_matches_nothing_is_told() -> None:
    with pytest.raises(PlanError, match=r"pattern 'fc\*' matches no layer; nearest names: "):
        plan(two_layers(), torch.rand(1, 4), include="fc*")
    with pytest.raises(PlanError, match="no layer of type Conv2d; there are Linear, ReLU, Sequent"):
        plan(two_layers(), torch.rand(1, 4), exclude=nn.Conv2d)


def test_zero_groups_is_an_error_with_every_reason() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    with pytest.raises(PlanError) as told:
        plan(model, torch.rand(2, 4))
    assert str(told.value).splitlines() == [
        "nothing of this model can be gated:",
        "  0: layer_norm(4) in '1' mixes the units",
        "  2: an output of the model keeps its shape",
    ]


def test_an_operator_without_a_rule_pins_what_it_touches() -> None:
    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(8, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(torch.relu(self.b(self.a(x).sort(-1).values)))

    found = plan(Sorted(), torch.rand(2, 4))
    assert [group.name for group in found.groups] == ["b"]
    assert reasons(found)["a"] == "aten.sort.default has no rule (sort)"


def test_recurrent_layers_are_left_alone(network: Network) -> None:
    told = reasons(plan(*network("lstm tagger")))
    assert told["lstm"] == "lstm in 'lstm' is recurrent: its weights are left alone"
    assert told["embed"] == told["lstm"]


def test_a_layer_norm_is_the_reason_for_a_residual_stream(network: Network) -> None:
    told = reasons(plan(*network("mixer")))
    assert told["patch"] == told["channel.2"] == "layer_norm(8) in 'norm1' mixes the units"


def test_a_weight_read_outside_of_its_module_is_not_cut() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(8, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.relu(self.a(x))
            return self.c(torch.relu(F.linear(hidden, self.b.weight)))

    told = reasons(plan_or_reasons(Reader(), torch.rand(2, 4)))
    assert told["b"] == told["a"] == "'b.weight' is read outside of its module, by linear"


def plan_or_reasons(model: nn.Module, x: Tensor) -> Plan:
    """The plan; or what its error lists, as a plan would."""
    try:
        return plan(model, x)
    except PlanError as error:
        lines = [line.strip().split(": ", 1) for line in str(error).splitlines()[1:]]
        return Plan((), tuple(Skipped(layer, reason) for layer, reason in lines))


def test_parametrized_layers_are_refused() -> None:
    model = two_layers()
    parametrizations.weight_norm(model[2])
    told = reasons(plan_or_reasons(model, torch.rand(2, 4)))
    assert told["2.parametrizations.weight"] == (
        "'2' is parametrized: its weight is computed, not held"
    )


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_rewritten_weights_are_refused() -> None:
    model = two_layers()
    torch.nn.utils.weight_norm(model[2])
    with pytest.raises(PlanError, match="weight of '2' is rewritten before each call"):
        plan(model, torch.rand(2, 4))


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


def test_frozen_parameters_stay_frozen() -> None:
    model = two_layers()
    model[0].requires_grad_(False)
    gated = sparsify(model, example_inputs=torch.rand(1, 4), lam=0.0)
    assert [p.requires_grad for p in gated.compact().parameters()] == [False] * 2 + [True] * 4


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


def test_control_flow_on_data_is_one_message() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x)) if x.sum() > 0 else self.b(-self.a(x))

    with pytest.raises(PlanError, match=r"torch\.export cannot capture the model") as told:
        plan(Branch(), torch.rand(2, 4))
    assert len(str(told.value).splitlines()) == 1
    assert "Control flow that depends on data has no graph" in str(told.value)


@pytest.mark.parametrize("x", [torch.rand(2, 5), torch.randint(3, (2, 4))], ids=["shape", "dtype"])
def test_inputs_that_do_not_fit_are_told(x: Tensor) -> None:
    with pytest.raises(PlanError, match="does not run on the example inputs: RuntimeError") as told:
        plan(two_layers(), x)
    assert len(str(told.value).splitlines()) == 1


def test_what_is_no_plain_model_is_refused() -> None:
    with pytest.raises(PlanError, match="gated already; plan the plain model, or compact it"):
        plan(sparsify(MLP((4, 3, 2)), lam=0.1), torch.rand(1, 4))
    with pytest.raises(PlanError, match="ReLU has no parameters: there is nothing to gate"):
        plan(nn.ReLU(), torch.rand(1, 4))
    with pytest.raises(TypeError, match=r"plan needs an nn\.Module, got function"):
        plan(lambda x: x, torch.rand(1, 4))  # type: ignore[arg-type]


def test_a_model_whose_output_depends_on_no_parameter() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    with pytest.raises(PlanError, match="unused: not used when the model runs on the example"):
        plan(Idle(), torch.rand(1, 4))


def test_a_gated_model_from_example_inputs() -> None:
    gated = sparsify(two_layers(), example_inputs=(torch.rand(1, 4),), lam=0.1, initial=0.95)
    assert isinstance(gated, Gated)
    assert gated.gates.probs.mean().item() == pytest.approx(0.95, abs=0.01)
    assert [group.name for group in gated.groups] == ["0", "2"]


def test_a_plain_model_with_the_gates_of_another_is_refused() -> None:
    model, x = two_layers(), torch.rand(1, 4)
    sparsify(model, example_inputs=x, lam=0.1)
    with pytest.raises(ValueError, match="is gated already by another Gated"):
        plan(model, x)


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
    told = reasons(plan_or_reasons(model, torch.rand(2, 4)))
    assert told["2"] == "'2' is quantised: its weight is packed"
    assert told["table"] == "'Sequential' is quantised: its weight is packed"
    assert "is quantised" not in told["4"]


def test_weights_without_values_are_refused() -> None:
    with torch.device("meta"):
        model = two_layers()
    with pytest.raises(PlanError, match=r"'0\.weight' is on the meta device .*to_empty") as told:
        plan(model, torch.rand(1, 4))
    assert len(str(told.value).splitlines()) == 1
    lazy = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LazyLinear(2))
    with pytest.raises(PlanError, match=r"'2\.weight' has no shape yet .*run the model once"):
        plan(lazy, torch.rand(1, 4))


@pytest.mark.parametrize("name", ["include", "exclude"])
@pytest.mark.parametrize("pattern", [3, ["0", 3], nn.ReLU(), int])
def test_patterns_are_names_or_types(name: str, pattern: Any) -> None:
    wanted: Any = {name: pattern}
    with pytest.raises(PlanError, match=rf"^{name} takes names of layers .* or their types; got"):
        plan(two_layers(), torch.rand(1, 4), **wanted)


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
    ) as told:
        plan(model, torch.rand(1, 4))
    assert "depends on data" not in str(told.value)
    model.registered = True
    torch.export.register_dataclass(Registered)
    found = plan(model, torch.rand(1, 4))
    assert [group.name for group in found.groups] == ["0", "2"]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_data_is_blamed_only_where_it_decides() -> None:
    class Through(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return torch.from_numpy(super().forward(x).numpy())

    with pytest.raises(PlanError, match=r"cannot capture the model: .*write the groups") as told:
        plan(Through(*two_layers()), torch.rand(1, 4))
    assert "depends on data" not in str(told.value)
    with pytest.raises(PlanError, match=r"a ScriptModule .*plan the nn\.Module it was made from"):
        plan(torch.jit.trace(two_layers(), torch.rand(1, 4)), torch.rand(1, 4))


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


class Idle(nn.Module):
    """Layers that are called for nothing: one reads live units, two read each other alone."""

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
def test_a_call_for_nothing_is_cut_too(mixes: bool) -> None:
    model, x = Idle(mixes), torch.randn(3, 4)
    found = plan(model, x)
    (entry,) = found.planned
    assert (entry.group.name, entry.execution) == ("a", "as is")
    assert {piece.tensor for piece in entry.group.reads} == {"b.weight", "unused.weight"}
    told = {skip.layer: skip.reason for skip in found.skipped}
    assert told["unused"] == told["first"] == "not used when the model runs on the example"
    gated = sparsify(model, found, "l0-arm", lam=0.0, example_inputs=x)
    gated.phi.data = torch.tensor([9.0, -9.0] * 4)
    small = gated.compact()
    assert (small.a.out_features, small.unused.in_features) == (4, 4)


def test_reading_a_weight_that_is_computed_does_not_move_it() -> None:
    """Spectral norm takes a step of its power iteration whenever its weight is read."""
    model = two_layers()
    model[2] = parametrizations.spectral_norm(model[2])
    model.append(nn.ReLU()).append(nn.Linear(2, 3))
    found = plan(model.train(), torch.rand(4, 4))
    assert {entry.group.name: entry.execution for entry in found.planned} == {"4": "as is"}


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
