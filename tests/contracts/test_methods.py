"""What every member of METHODS promises, whatever it does."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from l0arm import Gated, architecture, prune_rate, sparsify
from l0arm.contracts import Estimator, Gates, Method
from l0arm.costs import expected_flops
from l0arm.estimators import ARM, DisARM
from l0arm.gates import Bernoulli
from l0arm.gating.layout import named_tensors
from l0arm.methods import METHODS
from l0arm.methods._group_lasso import shrink
from l0arm.models import MLP, LeNet5, WideResNet
from l0arm.testing import ContractError, check_estimator, check_method
from l0arm.testing._method import METHOD_CHECKS

SPECIAL: dict[str, dict[str, Any]] = {"l0": {"lam": 1e-3, "estimator": "arms", "samples": 4}}


def options(name: str) -> dict[str, Any]:
    """A strength that prunes something within a hundred steps, for methods that have one."""
    has_strength = "lam" in inspect.signature(METHODS[name]).parameters
    return SPECIAL.get(name, {"lam": 1e-3} if has_strength else {})


MODELS = {
    "mlp": (lambda: MLP((12, 9, 7, 4)), (20, 12)),
    "lenet5": (lambda: LeNet5(4), (20, 1, 28, 28)),
    "wrn": (lambda: WideResNet(10, 1, classes=4), (4, 3, 16, 16)),
}
pytestmark = pytest.mark.filterwarnings("ignore:every unit of group")


def made(name: str, model: str = "mlp") -> Gated:
    return sparsify(MODELS[model][0](), method=METHODS[name](**options(name)))


def batch(model: str = "mlp") -> tuple[Tensor, Tensor]:
    shape = MODELS[model][1]
    return torch.rand(shape), torch.arange(shape[0]) % 4


def step(gated: Gated, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    loss = gated.loss(lambda: F.cross_entropy(gated(x), y))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if gated.method.after_step is not None:
        gated.method.after_step(gated, optimizer)
    return loss.total.item()


def pruned(name: str, model: str) -> Gated:
    """A network after all stages of its method, with gates in all states, in float64."""
    gated = made(name, model)
    method = gated.method
    assert isinstance(method, Method)
    for stage in method.stages:
        if stage.enter is not None:
            stage.enter(gated, None)
    _half_closed(gated)
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=1e-3))
    for _ in range(2):
        step(gated, optimizer, *batch(model))
    return gated.double().eval()


def _half_closed(gated: Gated) -> None:
    """Move what decides about a gate to both sides of the threshold."""
    half = torch.rand(gated.layout.gates) < 0.4
    columns = {"sbp": {0: 0.0, 1: 4.0}, "bc-gnj": {0: 0.1, 1: 0.0}, "bc-ghs": {2: -9.0, 3: -9.0}}
    columns["vibnet"] = {0: 0.1, 1: 0.0}
    with torch.no_grad():
        for column, value in columns.get(gated.method.name, {}).items():
            gated.phi[half, column] = value
        if gated.method.name.startswith(("l0-", "gen")):
            gated.phi[half] = -3.0
        if gated.method.name == "sparse-vd":
            for log_variance in gated.extras.parameters():
                log_variance.add_(4 * torch.randn_like(log_variance) + 3)
        if gated.method.name == "group-lasso":
            tensors = named_tensors(gated.model)
            for group, closing in zip(gated.groups, gated.per_group(half).values(), strict=True):
                shrink(group, tensors, torch.where(closing, 1e9, 0.0))


@pytest.fixture(params=sorted(METHODS))
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


def test_the_method_knows_its_name(name: str) -> None:
    known_as = "l0-arms" if name == "l0" else name  # any estimator: the name says which
    assert METHODS[name](**options(name)).name == known_as


def test_gradients_of_the_data_loss_are_finite_and_reach_what_is_trained(name: str) -> None:
    """The penalty alone would give phi a gradient, too."""
    torch.manual_seed(4)
    gated = made(name)
    x, y = batch()
    gated.loss(lambda: F.cross_entropy(gated(x), y)).data.backward()
    fixed = name in ("group-lasso", "l1-filter", "magnitude", "random", "sparse-vd")
    assert (gated.phi.grad is None) == fixed  # those close units themselves
    assert gated.model.fc1.weight.grad is not None
    for key, parameter in gated.named_parameters():
        if parameter.grad is not None:
            assert parameter.grad.isfinite().all(), key
    if not fixed:
        assert float(gated.phi.grad.abs().max()) > 0
    for key, parameter in gated.extras.named_parameters():
        assert parameter.grad is not None, key


@pytest.mark.parametrize("model", ["mlp", "lenet5", "wrn"])
def test_compaction_equals_the_methods_own_deterministic_network(name: str, model: str) -> None:
    gated = pruned(name, model)
    x = batch(model)[0].double()
    assert 0.0 < prune_rate(gated, "realised") < 100.0
    small = gated.compact().eval()
    assert not any(isinstance(module, Gated) for module in small.modules())
    with torch.no_grad():
        expected, found = gated(x), small(x)
        assert torch.equal(gated(x), expected)  # nothing is drawn in evaluation
    assert float((found - expected).abs().max()) <= 1e-10 * max(1.0, float(expected.abs().max()))
    gated.check(x)


@pytest.mark.parametrize("model", ["mlp", "lenet5"])
def test_counts_agree_with_the_compact_network(name: str, model: str) -> None:
    gated = pruned(name, model)
    z = gated.per_group(gated.deterministic())
    assert architecture(gated) == "-".join(str(int((part != 0).sum())) for part in z.values())
    small = sum(int(p.count_nonzero()) for p in gated.compact().parameters() if p.dim() >= 2)
    dense = sum(p.numel() for p in gated.model.parameters() if p.dim() >= 2)
    assert prune_rate(gated, "realised") == pytest.approx(100 * (1 - small / dense))
    flops = expected_flops(gated, batch(model)[0].double())
    assert 0 < flops.inference <= flops.dense


@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
def test_the_contract(name: str, check: Callable[..., None]) -> None:
    check(lambda: METHODS[name](**options(name)))


def l0_root(lam: float) -> Method:
    """A method from outside: a unit costs the square root of its size."""

    def penalty(gated: Gated, gates: Gates) -> Tensor:
        return lam * torch.dot(gated.sizes.sqrt(), gates.open_probability)

    return Method("l0-root", Bernoulli(), DisARM(), (penalty,))


class Shifted(Estimator):
    """DisARM with 1 added to every gradient."""

    takes, unbiased = "binary", True

    def __call__(self, f: Any, gates: Any, generator: Any = None) -> Tensor:
        probs = gates if isinstance(gates, Tensor) else gates.probs
        bias = probs.sum()
        return DisARM()(f, gates, generator) + bias - bias.detach()


class Careless(ARM):
    """ARM that ignores the generator, and says that it evaluates once."""

    forwards = 1

    def __call__(self, f: Any, gates: Any, generator: Any = None) -> Tensor:
        return super().__call__(f, gates)


def test_one_call_checks_a_method_from_outside() -> None:
    method = l0_root(1e-3)
    check_method(lambda: method)


@pytest.mark.parametrize(
    ("make", "message"),
    [(lambda: l0_root(1e-3), "two methods with the same options differ")],
)
def test_a_method_that_breaks_its_contract_is_named(make: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        check_method(make)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Shifted, "unbiased is True, but the mean of 540 estimates is"),
        (Careless, "2 evaluations, but forwards says 1"),
    ],
)
def test_an_estimator_that_breaks_its_contract_is_named(make: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        check_estimator(make)
