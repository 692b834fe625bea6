"""Depth: residual branches are units. Closed they are not computed, and cut they are gone."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.closing import with_zeros
from tests.helpers.enumeration import expectation
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import l0arm
from l0arm import Gated, Plan, compact, plan, sparsify
from l0arm.estimators import Exact
from l0arm.gates import Bernoulli
from l0arm.gating.branches import Nothing

Made = tuple[nn.Module, Tensor]


class Basic(nn.Module):
    """As in ResNets: one activation module for two places, the sum in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class Wider(nn.Module):
    """No branch: neither side of the sum is computed from the other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(6, 8, 3, padding=1), nn.Conv2d(6, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.a(x)) + self.b(x)


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def resnet() -> Made:
    layers = [nn.Conv2d(3, 6, 3), Basic(6), Basic(6), Wider(), Basic(8), Pooled(), nn.Linear(8, 3)]
    return nn.Sequential(*layers), torch.randn(4, 3, 6, 6)


class DropPath(nn.Module):
    """Stochastic depth by sample."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        keep = torch.ones((x.shape[0],) + (1,) * (x.ndim - 1), dtype=x.dtype)
        return x * keep


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)), None


class Layer(nn.Module):
    """Pre-norm with a LayerScale and stochastic depth; or post-norm; or both branches at once."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.attention, self.drop = Attention(8), DropPath()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
        self.scale = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "parallel":
            y = self.norm1(x)
            return self.attention(y)[0] + self.mlp(y) + x
        if self.kind == "post":
            x = self.norm1(self.attention(x)[0] + x)
            return self.norm2(x + self.mlp(x))
        x = x + self.drop(self.scale * self.attention(self.norm1(x))[0])
        return x + self.drop(self.mlp(self.norm2(x)))

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Stack(nn.Module):
    def __init__(self, kind: str, checkpointed: bool = False) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(5, 8), nn.Linear(8, 3)
        self.layers = nn.ModuleList(Layer(kind) for _ in range(2))
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            if self.checkpointed and torch.is_grad_enabled() and x.requires_grad:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return self.head(x)


NETWORKS: dict[str, tuple[Callable[[], Made], int]] = {
    "resnet": (resnet, 3),
    "pre-norm": (lambda: (Stack("pre"), torch.randn(2, 4, 5)), 4),
    "post-norm": (lambda: (Stack("post"), torch.randn(2, 4, 5)), 4),
    "parallel": (lambda: (Stack("parallel"), torch.randn(2, 4, 5)), 4),
}


def doubled(made: Made) -> Made:
    model, x = made
    for key, tensor in (*model.named_parameters(), *model.named_buffers()):
        if key.endswith("running_var"):
            tensor.data.uniform_(0.5, 1.5)
        elif tensor.is_floating_point():
            tensor.data.normal_(std=0.4)
    return model.double(), x.double()


def gated_by(model: nn.Module, found: Plan, z: Tensor, **options: Any) -> Gated:
    gated = sparsify(model, found, "l0-arm", lam=0.0, **options).double()
    gated.phi.data = torch.where(z > 0, 9.0, -9.0).to(gated.phi)
    return gated


def depth_of(found: Plan) -> slice:
    start = 0
    for group in found.groups:
        if group.branches:
            return slice(start, start + group.units)
        start += group.units
    raise AssertionError("no branches")


def masks(found: Plan) -> list[Tensor]:
    """One branch closed; all of them; a mix of everything."""
    gates, span = sum(group.units for group in found.groups), depth_of(found)
    one, none = torch.ones(gates), torch.ones(gates)
    one[span.start] = 0.0
    none[span] = 0.0
    mix = (torch.rand(gates) < 0.6).float()
    mix[span][::2] = 0.0
    return [one, none, mix]


@pytest.mark.parametrize("name", NETWORKS)
def test_branches_are_cut_and_equal_the_network_with_zeros(name: str) -> None:
    torch.manual_seed(1)
    make, count = NETWORKS[name]
    model, x = doubled(make())
    found = plan(model, x, depth=True)
    (entry,) = [entry for entry in found.planned if entry.group.branches]
    assert (entry.group.units, entry.execution) == (count, "skipped")
    original = copy.deepcopy(model)
    for z in masks(found):
        oracle = with_zeros(original, found.groups, z)
        gated = gated_by(copy.deepcopy(model), found, z)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a group inside may be closed whole
            small = compact(gated, example_inputs=x)
            assert not any(gated.layout.groups[n].branches for n in _present(small, gated, z))
            for mode in (True, False):
                want = copy.deepcopy(oracle).train(mode)(x)
                with gated.train(mode).drawn(z.to(gated.phi), writes=False):
                    torch.testing.assert_close(gated(x), want, rtol=0, atol=1e-11)
                torch.testing.assert_close(
                    copy.deepcopy(small).train(mode)(x), want, rtol=0, atol=1e-11
                )


def _present(small: nn.Module, gated: Gated, z: Tensor) -> list[int]:
    """Groups with parameters of closed branches that are still in the small network."""
    names = dict(small.named_parameters())
    closed = [branch for gate, branch in gated.layout.branches if z[gate] == 0]
    left = [name for name in names if any(branch.holds(name) for branch in closed)]
    return [0] if left else []


@pytest.mark.parametrize("checkpointed", [False, True])
def test_gradients_are_those_of_the_masked_network(checkpointed: bool) -> None:
    torch.manual_seed(2)
    model, x = doubled((Stack("pre", checkpointed), torch.randn(2, 4, 5)))
    found = plan(model, x, depth=True)
    z = masks(found)[2]
    gradients = []
    for execution in ("sliced", "masked"):
        gated = gated_by(copy.deepcopy(model), found, z, execution=execution).train()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with gated.drawn(z.to(gated.phi)):
                gated(x).square().sum().backward()
        gradients.append(dict(gated.model.named_parameters()))
    for key, parameter in gradients[0].items():
        assert parameter.grad is not None, key
        torch.testing.assert_close(parameter.grad, gradients[1][key].grad, rtol=1e-9, atol=1e-11)


def test_a_closed_branch_is_not_computed() -> None:
    model, x = doubled(resnet())
    found = plan(model, x, depth=True)
    gated = gated_by(model, found, torch.ones(sum(g.units for g in found.groups))).eval()
    calls: list[str] = []
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: calls.append(name))
    z = torch.ones(gated.layout.gates)
    z[depth_of(found).start] = 0.0
    with gated.drawn(z.to(gated.phi)):
        gated(x)
    assert "1.relu" in calls
    assert not {"1.conv1", "1.bn1", "1.conv2", "1.bn2"} & set(calls)
    assert {"2.conv1", "4.bn2"} <= set(calls)
    assert isinstance(model[1].conv1, nn.Conv2d)  # put back


@pytest.mark.parametrize("execution", ["sliced", "masked"])
def test_statistics_of_a_closed_branch_stay(execution: Any) -> None:
    torch.manual_seed(3)
    model, x = doubled(resnet())
    found = plan(model, x, depth=True)
    z = masks(found)[0]
    gated = gated_by(model, found, z, execution=execution).train()
    before = {key: buffer.clone() for key, buffer in model.named_buffers()}
    with gated.drawn(z.to(gated.phi)):
        gated(x)
    changed = {
        key.rpartition(".")[0] for key, b in model.named_buffers() if (b != before[key]).any()
    }
    assert changed == {"2.bn1", "2.bn2", "4.bn1", "4.bn2"}


def test_the_gradient_of_phi_is_exact_by_enumeration() -> None:
    torch.manual_seed(4)
    model, x = doubled(resnet())
    found = plan(model, x, depth=True)
    (group,) = [group for group in found.groups if group.branches]
    method = l0arm.Method("exact", Bernoulli(), Exact(), penalties=())
    gated = sparsify(model, [group], method).double().eval()
    gated.phi.data = torch.tensor([-0.3, 0.4, 0.1], dtype=torch.float64)
    gated.loss(lambda: gated(x).square().mean()).total.backward()

    def data_loss(z: Tensor) -> Tensor:
        return with_zeros(gated.model, [group], z)(x).square().mean().detach()

    pi = gated.gates.probs
    (want,) = torch.autograd.grad(expectation(data_loss, pi), gated.phi)
    gated.engine.check_attached()
    torch.testing.assert_close(gated.phi.grad, want, rtol=1e-9, atol=1e-12)


def test_optimizer_costs_and_the_way_back() -> None:
    torch.manual_seed(5)
    model, x = resnet()
    found = plan(model, x, depth=True)
    gated = sparsify(model, found, "l0-arm", lam=1e-6, example_inputs=x)
    optimizer = torch.optim.Adam(gated.parameter_groups())
    gated.loss(lambda: gated(x).square().mean()).total.backward()
    optimizer.step()
    z = masks(found)[1]
    gated.phi.data = torch.where(z > 0, 9.0, -9.0)
    sizes = l0arm.costs.expectation.parameter_cost(gated)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small = compact(gated, optimizer=optimizer)
    left = sum(p.numel() for p in small.parameters())
    assert float(sizes(z)) == left
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in small.parameters()}
    assert sum(isinstance(module, Nothing) for module in small.modules()) == 12
    wide = l0arm.expand(small, gated)
    torch.testing.assert_close(wide.eval()(x), small.eval()(x))


def test_what_cannot_be_a_unit_has_a_reason() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
            self.other = nn.Linear(6, 6)
            self.other.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.a(x)
            x = x + self.b(x) + 1.0 * self.other(x).cos()
            return self.head(x)

    found = plan(Shared(), torch.randn(3, 6), depth=True)
    reasons = {s.layer: s.reason for s in found.skipped if "residual" in s.reason}
    assert "shares the weight 'other.weight'" in reasons["a"]
    (group,) = [group for group in found.groups if group.branches]
    assert [branch.modules for branch in group.branches] == [("b",)]


def test_a_branch_that_ends_without_weights_and_cannot_be_left_out_has_a_reason() -> None:
    """Its first module gets a list, so that zeros of the right shape are not known."""

    class Grow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)

        def forward(self, values: list[Tensor]) -> Tensor:
            return self.conv(values[-1]).relu()

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.grow = nn.Conv2d(2, 4, 1), Grow()
            self.norm, self.head = nn.InstanceNorm2d(4), nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return self.head(x + self.norm(self.grow([x])))

    torch.manual_seed(0)
    found = plan(Listed(), torch.randn(2, 2, 3, 3), depth=True)
    (reason,) = [s.reason for s in found.skipped if "residual branch" in s.reason]
    assert "TypeError: a closed branch gets no tensor" in reason


def test_gates_that_are_not_binary_are_refused() -> None:
    model, x = resnet()
    found = plan(model, x, depth=True)
    with pytest.raises(ValueError, match=r"closes residual branches.*depth=True"):
        sparsify(model, found, "l0-hc", lam=0.0)


def test_a_plan_with_depth_is_text_and_can_be_saved(tmp_path: Any) -> None:
    torch.manual_seed(6)
    model, x = resnet()
    found = plan(model, x, depth=True)
    assert Plan.from_json(found.to_json()) == found
    assert "skipped" in str(found)
    z = masks(found)[2]
    gated = gated_by(model, found, z, example_inputs=x).float()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = compact(gated).eval()
    l0arm.save(small, tmp_path / "small")
    loaded = l0arm.load(tmp_path / "small", lambda: resnet()[0])
    assert torch.equal(loaded(x), small(x))
