"""sparsify: what it accepts, and what it says to a wrong use."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from l0arm import Group, HardSigmoid, Plan, Slice, certificate, plan, save, shrink, sparsify
from l0arm.estimators import ARM, DisARM
from l0arm.gates import Bernoulli
from l0arm.methods import METHODS, l0_arm
from l0arm.models import MLP
from l0arm.penalties import L0, L2


@pytest.fixture
def model() -> MLP:
    return MLP((4, 3, 2))


def test_a_model_with_groups_brings_its_own(model: MLP) -> None:
    assert sparsify(model, lam=0.1).groups == model.groups()


def test_groups_given_come_first(model: MLP) -> None:
    read = (Slice("fc2.weight", 1),)
    group = Group("only", 3, reads=read, counts=read)
    assert sparsify(model, [group], lam=0.1).groups == (group,)


def test_the_default_method_is_l0_disarm(model: MLP) -> None:
    method = sparsify(model, lam=0.1).method
    assert (method.name, method.estimator) == ("l0-disarm", DisARM())


def test_a_method_by_name_takes_its_options(model: MLP) -> None:
    gate = HardSigmoid(3)
    method = sparsify(model, method="l0-arm", lam=0.1, l2=0.2, gate=gate, chain="printed").method
    assert method.estimator == ARM("printed")
    assert method.gate == Bernoulli(gate)
    assert method.penalties == (L0(0.1), L2(0.2))


def test_a_method_object_is_used_as_it_is(model: MLP) -> None:
    method = l0_arm(0.1)
    assert sparsify(model, method=method).method is method


def test_the_model_is_used_and_not_copied(model: MLP) -> None:
    assert sparsify(model, lam=0.1).model is model


def test_gates_start_at_the_mean_of_their_group() -> None:
    pi = sparsify(MLP(), lam=0.1).gates.probs
    assert pi[:784].mean().item() == pytest.approx(0.8, abs=2e-3)
    assert pi[784:].mean().item() == pytest.approx(0.5, abs=2e-3)


def test_a_generator_fixes_the_start_and_leaves_the_global_state() -> None:
    before = torch.get_rng_state()
    models = MLP((4, 3, 2)), MLP((4, 3, 2))
    torch.set_rng_state(before)
    first, second = (
        sparsify(m, lam=0.1, generator=torch.Generator().manual_seed(1)).phi for m in models
    )
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


def test_execution_and_threshold_are_passed_on(model: MLP) -> None:
    gated = sparsify(model, execution="masked", threshold="valley", lam=0.1)
    assert (gated.execution, gated.threshold) == ("masked", "valley")


def test_a_gated_model_is_refused(model: MLP) -> None:
    with pytest.raises(ValueError, match="gated already; sparsify the plain model, or compact"):
        sparsify(sparsify(model, lam=0.1), lam=0.1)


def test_a_model_with_a_gated_part_is_refused(model: MLP) -> None:
    with pytest.raises(ValueError, match="gated already"):
        sparsify(nn.Sequential(sparsify(model, lam=0.1)), model.groups(), lam=0.1)


def test_a_model_without_groups_is_told_to_bring_them() -> None:
    with pytest.raises(ValueError, match=r"Linear has no groups\(\) of its own; pass groups="):
        sparsify(nn.Linear(2, 2), lam=0.1)


def test_an_empty_list_of_groups_is_refused(model: MLP) -> None:
    with pytest.raises(ValueError, match="no groups: nothing would be gated"):
        sparsify(model, [], lam=0.1)


def test_a_plan_without_groups_says_why_there_are_none() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))
    found = plan(net, torch.rand(3, 4))
    reason = r"the plan has no groups, .*: '1': an output of the model keeps its shape"
    with pytest.raises(ValueError, match=reason):
        sparsify(net, replace(found, planned=()), "l0-arm", lam=0.0)


def test_an_unknown_method_is_answered_with_the_known_ones(model: MLP) -> None:
    with pytest.raises(ValueError, match=r"unknown method 'l0-amr'; there are .*l0-arm, l0-"):
        sparsify(model, method="l0-amr", lam=0.1)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("l0-arm", {}, r"missing .*'lam'; the method's options are lam, .*; e\.g\. lam=0\.1 / N$"),
        ("l0", {"lam": 1.0, "samples": 2}, r"no option samples; .*, those of its estimator;"),
        (
            "random",
            {"lam": 1.0},
            r"unexpected .*'lam'; the method's options are keep, train, units$",
        ),
    ],
)
def test_options_that_a_method_lacks_are_told_with_those_it_has(
    method: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        sparsify(MLP(), method=method, **options)


def test_options_beside_a_method_object_are_refused(model: MLP) -> None:
    with pytest.raises(TypeError, match="l2, lam belong to a method given by name; set them where"):
        sparsify(model, method=l0_arm(0.1), lam=0.1, l2=0.2)


def test_a_misspelt_option_is_refused(model: MLP) -> None:
    with pytest.raises(TypeError, match="lamb"):
        sparsify(model, method="l0-arm", lamb=0.1)


def test_a_plain_model_that_is_hooked_already_is_refused():
    model = MLP((4, 3, 2))
    sparsify(model, method="l0-arm", lam=0.0)
    with pytest.raises(ValueError, match=r"'fc1' is gated already by another Gated.*release"):
        sparsify(model, method="l0-arm", lam=0.0)


def test_a_factory_in_place_of_a_method_is_refused():
    with pytest.raises(TypeError, match=r"must be a Method or a name.*call its factory"):
        sparsify(MLP((4, 3, 2)), method=l0_arm)  # type: ignore[arg-type]


def test_strengths_that_do_not_fit_the_groups_are_refused_at_once():
    with pytest.raises(ValueError, match="lam has 3 entries, but there are 2 groups"):
        sparsify(MLP((4, 3, 2)), method="l0-arm", lam=[0.1, 0.2, 0.3])


def test_a_released_model_can_be_gated_again():
    model = MLP((4, 3, 2))
    assert sparsify(model, lam=0.0).release() is model
    assert sparsify(model, lam=0.0).model is model


def test_a_single_group_is_refused(model: MLP) -> None:
    group = Group("only", 3, reads=(Slice("fc2.weight", 1),))
    with pytest.raises(TypeError, match=r"got a single Group; write groups=\[group\]"):
        sparsify(model, group, lam=0.1)  # type: ignore[arg-type]


def test_a_gate_class_is_refused(model: MLP) -> None:
    with pytest.raises(TypeError, match=r"must be a function of phi, .*write e.g. HardSigmoid\("):
        sparsify(model, lam=0.1, gate=HardSigmoid)


class TwoOutputs(nn.Module):
    """Its features are gated if only the logits count."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        h = torch.relu(self.a(x * scale))
        return {"logits": self.b(h), "feat": h}


@pytest.mark.parametrize("example", [True, False], ids=["example", "no example"])
def test_the_outputs_of_a_plan_stay_with_the_gated_model(example: bool, tmp_path: Path) -> None:
    model, x = TwoOutputs(), torch.randn(3, 4)
    found = Plan.from_json(plan(model, x, outputs=["logits"]).to_json())
    assert found.outputs == ("logits",)
    given = {"example_inputs": x} if example else {}
    later = {} if example else {"example_inputs": x}
    gated = sparsify(model, found, lam=1e-3, **given).eval()
    gated.phi.data.copy_(torch.tensor([9.0, -9.0] * 4))
    assert gated.check(x) < 1e-5
    small = gated.compact(**later)
    assert small.a.out_features == 4
    assert torch.allclose(small(x)["logits"], gated(x)["logits"], atol=1e-6)
    assert certificate(small).passed
    assert save(gated, tmp_path / "net", **later).exists()
    gated.phi.data[1] = -40.0
    shrunk = shrink(gated)
    assert shrunk.outputs == ("logits",)
    assert shrunk.compact(**later).a.out_features == 4


def test_a_budget_of_flops_takes_an_example_by_keyword() -> None:
    x = torch.randn(3, 4)
    options: dict[str, Any] = {"budget": {"flops": "40%"}}
    costs = [
        sparsify(TwoOutputs(), plan(TwoOutputs(), x, outputs="logits"), **given, **options)
        for given in (
            {"example_inputs": x},
            {"example_kwargs": {"x": x}},
            {"example_inputs": x, "example_kwargs": {"scale": 2.0}},
        )
    ]
    assert [gated.budget.cost.dense for gated in costs] == [2 * 3 * (4 * 8 + 8 * 2)] * 3


def test_a_budget_of_flops_without_an_example_asks_for_one(model: MLP) -> None:
    with pytest.raises(ValueError, match=r"needs example_inputs=\(x,\), or example_kwargs="):
        sparsify(model, budget={"flops": "40%"})


@pytest.mark.parametrize("name", ["include", "exclude", "outputs"])
def test_what_belongs_to_the_plan_is_told(name: str) -> None:
    x = torch.randn(3, 4)
    for method in ("l0-disarm", l0_arm(0.1)):
        with pytest.raises(TypeError, match=rf"^{name} belongs to plan.*plan\(model, .*{name}="):
            sparsify(TwoOutputs(), method=method, example_inputs=x, **{name: "a"})


@pytest.mark.parametrize("groups", ["plan", "own", "list"])
def test_an_example_that_does_not_fit_is_refused_at_once(groups: str) -> None:
    model = MLP((4, 3, 2))
    given = {"plan": plan(model, torch.randn(3, 4)), "own": None, "list": model.groups()}[groups]
    if groups == "own":
        assert sparsify(MLP((4, 3, 2)), None, lam=0.1, example_inputs=torch.randn(3, 4)).example
    with pytest.raises(ValueError, match=r"does not run on the example inputs: .*shapes") as told:
        sparsify(model, given, lam=0.1, example_inputs=torch.randn(3, 5))
    assert len(str(told.value).splitlines()) == 1
    assert not any(m._forward_hooks for m in model.modules())


def test_an_example_of_another_precision_is_taken() -> None:
    model, x = MLP((4, 3, 2)).bfloat16(), torch.randn(3, 4)
    assert sparsify(model, model.groups(), lam=0.1, example_inputs=x).compact() is not None


def test_an_example_is_tried_on_a_copy() -> None:
    seen: list[nn.Module] = []
    model = MLP((4, 3, 2))
    model.fc1.register_forward_hook(lambda module, *_: seen.append(module))
    sparsify(model, model.groups(), lam=0.1, example_inputs=torch.randn(3, 4))
    assert model.fc1 not in seen


@pytest.mark.parametrize("name", ["sparse-vd", "bc-gnj", "bc-ghs"])
def test_a_threshold_of_the_methods_own_reaches_it(name: str) -> None:
    gated = sparsify(MLP((6, 5, 3)), method=name, lam=1e-5, threshold=-4.0)
    own = gated.method.after_step.threshold if name == "sparse-vd" else gated.phi[:, -1]
    assert torch.as_tensor(own).eq(-4.0).all()
    assert gated.threshold == 0.5
    with pytest.raises(ValueError, match="threshold must be a finite number; got 'high'"):
        sparsify(MLP((6, 5, 3)), method=name, lam=1e-5, threshold="high")
    with pytest.raises(ValueError, match="threshold must be a finite number; got nan"):
        sparsify(MLP((6, 5, 3)), method=name, lam=1e-5, threshold=float("nan"))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("l1-filter", {"keep": [0.5, 0.2]}, "keep has 2 entries, but there are 3 groups"),
        ("random", {"keep": [0.5, 0.2]}, "keep has 2 entries, but there are 3 groups"),
        ("magnitude", {"keep": {"fc1": 0.5, "nope": 0.5}}, r"keep names the groups \['fc1', 'nope"),
        ("group-lasso", {"lam": [0.5, 0.2]}, "lam has 2 entries, but there are 3 groups"),
        ("sparse-vd", {"lam": 0.1, "warm_up": 0.1}, r"two points .* \(0.025, 0.1\); got 0.1"),
        ("bc-gnj", {"lam": 0.1, "warm_up": "x"}, "warm_up is a share of the stage.*got 'x'"),
        ("bc-ghs", {"lam": 0.1, "scale": float("inf")}, "must be > 0, and finite; got inf"),
    ],
)
def test_options_that_do_not_fit_are_told_before_the_training(
    name: str, options: dict[str, Any], message: str
) -> None:
    model = MLP((6, 5, 4, 3))
    with pytest.raises(ValueError, match=message):
        sparsify(model, method=name, **options)
    assert sparsify(model, method="l0-disarm", lam=0.1)  # it is as it was


@pytest.mark.parametrize("name", ["bc-gnj", "bc-ghs"])
def test_without_a_warm_up_the_penalty_counts_at_once(name: str) -> None:
    assert METHODS[name](0.1, warm_up=0).stages[0].penalty(0.0) == 1.0
