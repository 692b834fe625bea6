"""L0 methods: gates, estimators, penalties and names."""

import pytest
import torch

from l0arm import sparsify
from l0arm.estimators import AR, ARM, ARMS, ESTIMATORS, DisARM, Estimator, Exact
from l0arm.gates import Bernoulli, HardSigmoid, ScaledSigmoid
from l0arm.methods import METHODS, Method, l0, l0_ar, l0_arm, l0_disarm
from l0arm.models import MLP
from l0arm.penalties import L0, L1, L2


@pytest.mark.parametrize(
    ("name", "estimator"), [("l0-arm", ARM()), ("l0-ar", AR()), ("l0-disarm", DisARM())]
)
def test_the_parts_of_the_named_methods(name: str, estimator: Estimator) -> None:
    expected = Method(name, Bernoulli(ScaledSigmoid(7)), estimator, (L0(0.1),))
    assert METHODS[name](lam=0.1) == expected


@pytest.mark.parametrize("method", [l0, l0_arm, l0_ar, l0_disarm])
def test_gate_and_more_penalties_are_options(method: type) -> None:
    made = method(0.1, gate=HardSigmoid(3), l1=0.2, l2=[0.3, 0.4])
    assert made.gate == Bernoulli(HardSigmoid(3))
    assert made.penalties == (L0(0.1), L1(0.2), L2([0.3, 0.4]))


@pytest.mark.parametrize("method", [l0_arm, l0_ar])
def test_the_printed_chain_reaches_the_estimator(method: type) -> None:
    assert method(0.1, chain="printed").estimator.chain == "printed"


def test_lambda_0_keeps_its_penalty() -> None:
    assert l0_arm(0.0).penalties == (L0(0.0),)


def test_the_default_estimator_is_disarm() -> None:
    assert l0(0.1) == l0_disarm(0.1)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_an_estimator_is_given_by_name(name: str) -> None:
    method = l0(0.1, estimator=name)
    assert method.estimator == ESTIMATORS[name]()
    assert method.name == f"l0-{name}"


def test_an_estimator_is_given_as_an_object() -> None:
    assert l0(0.1, estimator=Exact(max_gates=3)).estimator == Exact(max_gates=3)


def test_a_name_is_an_option() -> None:
    assert l0(0.1, name="mine").name == "mine"


@pytest.mark.parametrize("name", ["lam", "l1", "l2"])
def test_a_negative_strength_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"finite number >= 0.*got -1"):
        l0(**{"lam": 0.1, name: -1})


def test_an_estimator_class_is_refused() -> None:
    with pytest.raises(TypeError, match=r"an instance or a name; write ARMS\(\)"):
        l0(0.1, estimator=ARMS)


def test_a_gate_family_in_place_of_a_gate_function_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must be a function g .* got the family Bernoulli"):
        l0(0.1, gate=Bernoulli())


def test_a_number_is_the_scale_of_the_sigmoid() -> None:
    assert l0_arm(0.1, gate=3).gate == l0_arm(0.1, gate=ScaledSigmoid(3.0)).gate


@pytest.mark.parametrize("make", [l0_arm, l0_ar])
def test_k_1_at_49_times_the_rate_takes_the_step_of_k_7(make: type) -> None:
    """phi' = k phi has the gradient of phi divided by k, so SGD needs k^2 times its rate.

    This is the authors' step (k s and the penalty's gradient) without a cut-off of decided gates.
    """
    phi, x = torch.tensor([0.2, -0.1, 0.05, 0.3, 0.1]), torch.rand(6, 3, dtype=torch.float64)
    moved = []
    for k, rate, chain in ((7.0, 0.1, "exact"), (1.0, 4.9, "printed")):
        torch.manual_seed(0)
        method = make(0.01, gate=k, l2=0.02, chain=chain)
        gated = sparsify(MLP((3, 2, 2)), method=method).double()
        gated.phi.data = phi.double() * 7 / k
        optimizer = torch.optim.SGD([gated.phi], lr=rate, momentum=0.9, nesterov=True)
        generator = torch.Generator().manual_seed(3)
        for _ in range(3):
            optimizer.zero_grad()
            gated.loss(lambda gated=gated: gated(x).square().mean(), generator=generator).backward()
            optimizer.step()
        moved.append(k * gated.phi.detach())
    torch.testing.assert_close(moved[0], moved[1], rtol=1e-12, atol=1e-12)
    assert torch.all((moved[0] - 7 * phi).abs() > 1e-4)
