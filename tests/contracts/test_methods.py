"""What every member of METHODS promises, whatever it does."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm import Gated, architecture, prune_rate, sparsify
from l0arm.costs import expected_flops
from l0arm.gating.layout import named_tensors
from l0arm.methods import METHODS, Method
from l0arm.methods._group_lasso import shrink
from l0arm.models import MLP, LeNet5, WideResNet

# Strong enough to prune something within a hundred steps of a small network.
OPTIONS: dict[str, dict[str, Any]] = {
    "bc-ghs": {"lam": 1e-3},
    "bc-gnj": {"lam": 1e-3},
    "generalized-dropout": {"lam": 1e-3},
    "group-lasso": {"lam": 1e-3},
    "l0": {"lam": 1e-3, "estimator": "arms", "samples": 4},
    "l0-ar": {"lam": 1e-3},
    "l0-arm": {"lam": 1e-3},
    "l0-best": {"lam": 1e-3},
    "l0-disarm": {"lam": 1e-3},
    "l0-hc": {"lam": 1e-3},
    "l1-filter": {},
    "magnitude": {},
    "random": {},
    "sbp": {"lam": 1e-3},
    "sparse-vd": {"lam": 1e-3},
}
MODELS = {
    "mlp": (lambda: MLP((12, 9, 7, 4)), (20, 12)),
    "lenet5": (lambda: LeNet5(4), (20, 1, 28, 28)),
    "wrn": (lambda: WideResNet(10, 1, classes=4), (4, 3, 16, 16)),
}
pytestmark = pytest.mark.filterwarnings("ignore:every unit of group")


def made(name: str, model: str = "mlp") -> Gated:
    return sparsify(MODELS[model][0](), method=METHODS[name](**OPTIONS[name]))


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


def test_every_method_is_tried_here() -> None:
    assert set(OPTIONS) == set(METHODS)


def test_the_method_knows_its_name(name: str) -> None:
    known_as = "l0-arms" if name == "l0" else name  # any estimator: the name says which
    assert METHODS[name](**OPTIONS[name]).name == known_as


def test_a_method_is_a_value(name: str) -> None:
    assert METHODS[name](**OPTIONS[name]) == METHODS[name](**OPTIONS[name])


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


def test_the_value_is_the_data_loss_plus_the_penalty(name: str) -> None:
    gated = made(name)
    x, y = batch()
    seen: list[Tensor] = []

    def closure() -> Tensor:
        seen.append(F.cross_entropy(gated(x), y))
        return seen[-1]

    loss = gated.loss(closure)
    assert loss.data.item() == pytest.approx(seen[0].item())
    assert loss.total.item() == pytest.approx(seen[0].item() + gated.penalty().item())
    gated.penalty_weight = 0.25
    assert gated.penalty().item() == pytest.approx(loss.penalty.item() / 4)


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


def test_the_state_makes_another_network_the_same(name: str) -> None:
    gated = pruned(name, "mlp")
    torch.manual_seed(99)
    twin = made(name).double().eval()
    twin.load_state_dict(gated.state_dict())
    x = batch()[0].double()
    assert torch.equal(twin.deterministic(), gated.deterministic())
    assert torch.equal(twin(x), gated(x))
    results = []
    for network in (gated, twin):
        network.train()
        torch.manual_seed(5)
        optimizer = torch.optim.Adam(network.parameter_groups(lr=1e-2))
        results.append([step(network, optimizer, x, batch()[1]) for _ in range(3)])
    assert results[0] == results[1]


def test_a_deep_copy_goes_its_own_way(name: str) -> None:
    gated = made(name)
    twin, x, y = copy.deepcopy(gated), *batch()
    torch.manual_seed(1)
    before = {key: value.clone() for key, value in gated.state_dict().items()}
    optimizer = torch.optim.Adam(twin.parameter_groups(lr=1e-2))
    for _ in range(2):
        step(twin, optimizer, x, y)
    assert all(torch.equal(value, before[key]) for key, value in gated.state_dict().items())
    changed = [
        key for key, value in twin.state_dict().items() if not torch.equal(value, before[key])
    ]
    assert "model.fc1.weight" in changed


def test_a_seed_fixes_a_run(name: str) -> None:
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        gated, (x, y) = made(name), batch()
        optimizer = torch.optim.Adam(gated.parameter_groups(lr=1e-2))
        results.append([step(gated, optimizer, x, y) for _ in range(3)])
    assert results[0] == results[1]


def test_a_step_under_bfloat16_autocast(name: str) -> None:
    gated, (x, y) = made(name), batch()
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=1e-2))
    with torch.autocast("cpu", torch.bfloat16):
        loss = gated.loss(lambda: F.cross_entropy(gated(x), y))
    loss.backward()
    optimizer.step()
    if gated.method.after_step is not None:
        gated.method.after_step(gated, optimizer)
    assert loss.total.isfinite()
    assert all(p.isfinite().all() for p in gated.parameters())


def test_the_users_model_is_as_before_once_released(name: str) -> None:
    model = MODELS["mlp"][0]()
    keys, kinds = list(model.state_dict()), [type(m) for m in model.modules()]
    gated = sparsify(model, method=name, **OPTIONS[name])
    x, y = batch()
    step(gated, torch.optim.Adam(gated.parameter_groups(lr=1e-2)), x, y)
    plain: nn.Module = gated.release()
    assert plain is model
    assert (list(model.state_dict()), [type(m) for m in model.modules()]) == (keys, kinds)
    assert all("forward" not in vars(m) for m in model.modules())
    assert torch.equal(model(x), model(x))  # no noise is left in it
