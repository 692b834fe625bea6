"""Gated: what a call and a loss compute, write, and leave alone."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import l0arm
from l0arm import EmptyGroupWarning, Gated, Group, ScaledSigmoid, Slice, sparsify
from l0arm.gating.draw import Draw
from l0arm.lab.data import mnist_mini
from l0arm.models import MLP, LeNet5, WideResNet

EXECUTIONS = ["sliced", "masked"]
NETWORKS = ["mlp", "lenet5", "wrn"]
METHODS = ["l0-ar", "l0-arm", "l0-disarm"]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(gated: Gated, seed: int) -> Tensor:
    """The u that a loss draws from a generator with this seed."""
    return torch.rand(gated.phi.shape, generator=generator(seed), dtype=gated.phi.dtype)


def bits(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


@pytest.fixture
def loss() -> Callable[..., Any]:
    def of(gated: Gated, net: Any, seed: int = 0) -> Any:
        return gated.loss(lambda: F.cross_entropy(gated(net.x), net.y), generator(seed))

    return of


# BatchNorm


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("method", METHODS)
def test_a_loss_counts_one_batch_in_every_norm(
    method: str, execution: str, network: Any, loss: Any
) -> None:
    net = network("wrn")
    gated = net.gated(execution=execution, method=method)
    loss(gated, net)
    counts = [b.item() for k, b in gated.model.named_buffers() if k.endswith("tracked")]
    assert counts == [1] * 7


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_loss_writes_the_statistics_of_its_first_draw(
    execution: str, network: Any, trace: Any, written: Any, loss: Any
) -> None:
    net = network("wrn")
    gated = net.gated(execution=execution)
    z = (noise(gated, 0) < gated.gates.probs).double()
    loss(gated, net)
    expected = written(trace(net.oracle(z).train(), net.x, net.y), net, z)
    for key, buffer in gated.model.named_buffers():
        assert_close(buffer, expected[key], rtol=1e-10, atol=1e-10, msg=key)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_loss_leaves_the_rows_of_closed_filters_bit_for_bit(
    execution: str, network: Any, loss: Any
) -> None:
    net = network("wrn")
    gated = net.gated(execution=execution)
    closed = gated.per_group(noise(gated, 0) >= gated.gates.probs)
    loss(gated, net)
    for n, block in enumerate(net.plain.blocks):
        rows = closed[f"blocks.{n}.conv1"]
        for key in ("running_mean", "running_var"):
            now = gated.model.get_buffer(f"blocks.{n}.norm2.{key}")
            assert torch.equal(now[rows], block.norm2.get_buffer(key)[rows])
            assert not torch.isin(now[~rows], block.norm2.get_buffer(key)[~rows]).any()


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_both_evaluations_run_on_batch_statistics(execution: str, network: Any) -> None:
    net = network("wrn")
    gated = net.gated(execution=execution)
    losses = []

    def closure() -> Tensor:
        losses.append(F.cross_entropy(gated(net.x), net.y))
        return losses[-1]

    gated.loss(closure, generator(0))
    u, pi = noise(gated, 0), gated.gates.probs
    draws = [(u < pi).double(), (u >= 1 - pi).double()]
    expected = [F.cross_entropy(net.oracle(z).train()(net.x), net.y) for z in draws]
    assert_close(torch.stack(losses), torch.stack(expected), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("training", [True, False])
def test_a_pass_that_must_not_write_leaves_every_buffer_bit_for_bit(
    training: bool, execution: str, network: Any
) -> None:
    net = network("wrn")
    gated = net.gated(execution=execution).train(training)
    before = bits(gated)
    with gated.drawn(net.gates(0), writes=False):
        gated(net.x)
    assert_close(bits(gated), before, rtol=0, atol=0)


def test_eval_mode_writes_no_buffer(network: Any) -> None:
    net = network("wrn")
    gated = net.gated(z=net.gates(0, fractional=True)).eval()
    before = bits(gated)
    gated(net.x)
    assert_close(bits(gated), before, rtol=0, atol=0)


def test_a_training_call_outside_a_loss_writes_like_any_network(network: Any) -> None:
    net = network("wrn")
    gated = net.gated()
    gated(net.x)
    assert gated.model.norm.num_batches_tracked.item() == 1


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_frozen_norm_stays_frozen(execution: str, network: Any, loss: Any) -> None:
    net = network("wrn")
    gated = net.gated(execution=execution)
    norm = gated.model.blocks[0].norm2.eval()
    before = bits(norm)
    loss(gated, net)
    assert_close(bits(norm), before, rtol=0, atol=0)


# Dropout


def test_dropout_is_off_in_eval_mode(network: Any) -> None:
    net = network("wrn")
    for block in net.plain.blocks:
        block.dropout.p = 0.3
    z = net.gates(0, fractional=True)
    expected = net.oracle(z).eval()(net.x)
    assert_close(net.gated(z=z).eval()(net.x), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_dropout_of_the_same_units_equals_the_oracle(
    execution: str, network: Any, trace: Any, written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = network("wrn")
    z = net.gates(0)
    open_gates = dict(zip([16, 32, 64], torch.split(z != 0, [16, 32, 64]), strict=True))

    def dropout(self: nn.Dropout, x: Tensor) -> Tensor:
        width = next(w for w, gates in open_gates.items() if x.shape[1] in (w, gates.sum()))
        keep = torch.rand((4, width, *x.shape[2:]), generator=generator(width)) < 0.7
        return x * (keep if x.shape[1] == width else keep[:, open_gates[width]])

    monkeypatch.setattr(nn.Dropout, "forward", dropout)
    gated = net.gated(execution=execution)
    with gated.drawn(z):
        came = trace(gated.model, net.x, net.y, gated)
    expected = written(trace(net.oracle(z), net.x, net.y), net, z)
    assert_close(came, expected, rtol=1e-10, atol=1e-10)


# Loss and the gradient of phi


@pytest.mark.parametrize("method", METHODS)
def test_total_is_data_plus_penalty(method: str, network: Any, loss: Any) -> None:
    net = network("lenet5")
    gated = net.gated(method=method, lam=0.01)
    total, data, penalty = loss(gated, net)
    assert total.item() == data.item() + penalty.item()
    pi = gated.per_group(gated.gates.probs).values()
    norm = sum(size * p.sum().item() for size, p in zip((25, 500, 500, 10), pi, strict=True))
    assert penalty.item() == pytest.approx(0.01 * norm, rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_data_is_the_loss_under_the_first_draw(method: str, network: Any, loss: Any) -> None:
    net = network("lenet5")
    gated = net.gated(method=method)
    z = (noise(gated, 0) < gated.gates.probs).double()
    expected = F.cross_entropy(net.oracle(z)(net.x), net.y)
    assert_close(loss(gated, net).data, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_gradient_of_phi_is_equation_9(
    name: str, execution: str, network: Any, loss: Any
) -> None:
    net = network(name)
    gated = net.gated(execution=execution, gate=ScaledSigmoid(7))
    loss(gated, net).total.backward()
    u, pi = noise(gated, 0), gated.gates.probs.detach()
    with torch.no_grad():
        f = [
            F.cross_entropy(net.oracle(z.double()).train()(net.x), net.y)
            for z in (u < pi, u >= 1 - pi)
        ]
    assert_close(gated.phi.grad, 7 * (f[1] - f[0]) * (u - 0.5), rtol=1e-8, atol=1e-12)


def test_the_gradient_of_phi_is_the_estimate_plus_that_of_the_penalty(
    network: Any, loss: Any
) -> None:
    net = network("lenet5")
    free, charged = (net.gated(lam=lam, gate=ScaledSigmoid(7)) for lam in (0.0, 0.3))
    charged.phi.data = free.phi.data.clone()
    loss(free, net).total.backward()
    loss(charged, net).total.backward()
    pi = free.gates.probs.detach()
    price = 0.3 * free.sizes * 7 * pi * (1 - pi)  # lam |g| g'(phi)
    assert_close(charged.phi.grad, free.phi.grad + price, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_twice_over_gives_the_same_estimate(method: str, network: Any, loss: Any) -> None:
    net = network("lenet5")
    gated = net.gated(method=method)
    loss(gated, net).total.backward()
    once, gated.phi.grad = gated.phi.grad, None
    net.x, net.y = net.x.repeat(2, 1, 1, 1), net.y.repeat(2)
    loss(gated, net).total.backward()
    assert_close(gated.phi.grad, once, rtol=1e-9, atol=1e-12)


def test_gradients_accumulate_over_two_losses(network: Any, loss: Any) -> None:
    net = network("lenet5")
    gated = net.gated(lam=0.1)
    gradients = []
    for seeds in ((1,), (2,), (1, 2)):
        gated.zero_grad()
        for seed in seeds:
            loss(gated, net, seed).total.backward()
        gradients.append({k: p.grad for k, p in gated.named_parameters()})
    first, second, both = gradients
    assert_close(both, {k: first[k] + second[k] for k in first}, rtol=1e-10, atol=1e-12)


def test_one_backward_of_a_sum_is_two_backwards(network: Any, loss: Any) -> None:
    net = network("lenet5")
    gated = net.gated(lam=0.1)
    (loss(gated, net, 1).total + loss(gated, net, 2).total).backward()
    summed = {k: p.grad for k, p in gated.named_parameters()}
    gated.zero_grad()
    for seed in (1, 2):
        loss(gated, net, seed).total.backward()
    accumulated = {k: p.grad for k, p in gated.named_parameters()}
    assert_close(summed, accumulated, rtol=1e-10, atol=1e-12)


def test_clipping_scales_phi_with_the_weights(network: Any, loss: Any) -> None:
    net = network("lenet5")
    gated = net.gated(lam=1.0)
    loss(gated, net).total.backward()
    phi, weight = gated.phi.grad.clone(), gated.model.fc1.weight.grad.clone()
    norm = torch.nn.utils.clip_grad_norm_(gated.parameters(), 1e-3)
    assert_close(gated.phi.grad, phi * 1e-3 / norm, rtol=1e-5, atol=0)
    assert_close(gated.model.fc1.weight.grad, weight * 1e-3 / norm, rtol=1e-5, atol=0)


def test_a_loss_without_gradients_has_the_same_value(network: Any, loss: Any) -> None:
    net = network("wrn")
    gated = net.gated(lam=0.1)
    expected = loss(gated, net).total.item()
    with torch.no_grad():
        assert loss(gated, net).total.item() == expected


# Calls


def test_a_training_call_takes_a_fresh_draw(network: Any) -> None:
    net = network("lenet5")
    gated = net.gated()
    assert not torch.equal(gated(net.x), gated(net.x))


def test_a_training_call_runs_under_a_draw_of_the_gates(network: Any) -> None:
    net = network("lenet5")
    gated = net.gated()
    torch.manual_seed(5)
    z = gated.gates.sample()
    torch.manual_seed(5)
    assert_close(gated(net.x), net.oracle(z)(net.x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_model_inside_is_the_dense_network(name: str, network: Any, loss: Any) -> None:
    net = network(name)
    gated = net.gated().eval()
    loss(gated, net).total.backward()
    gated(net.x)
    assert torch.equal(gated.model(net.x), net.plain.eval()(net.x))


def test_everything_inside_drawn_sees_the_draw(network: Any) -> None:
    net = network("lenet5")
    gated = net.gated()
    z = net.gates(0)
    with gated.drawn(z):
        assert torch.equal(gated.model(net.x), gated(net.x))
        assert_close(gated(net.x), net.oracle(z)(net.x), rtol=1e-10, atol=1e-10)


def test_the_inner_of_two_draws_counts(network: Any) -> None:
    net = network("lenet5")
    gated = net.gated()
    with gated.drawn(net.gates(0)):
        with gated.drawn(net.gates(1)):
            inner = gated(net.x)
        outer = gated(net.x)
    assert_close(inner, net.oracle(net.gates(1))(net.x), rtol=1e-10, atol=1e-10)
    assert_close(outer, net.oracle(net.gates(0))(net.x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_inference_mode_gives_the_same_numbers(execution: str, name: str, network: Any) -> None:
    net = network(name)
    gated = net.gated(z=net.gates(0, fractional=True), execution=execution).eval()
    expected = gated(net.x)
    with torch.inference_mode():
        assert torch.equal(gated(net.x), expected)
    assert torch.equal(gated(net.x), expected)


def test_training_goes_on_after_inference_mode(network: Any, loss: Any) -> None:
    net = network("wrn")
    gated = net.gated()
    with torch.inference_mode():
        gated.eval()(net.x)
    loss(gated.train(), net).total.backward()
    assert gated.model.blocks[0].norm2.num_batches_tracked.item() == 1


def test_a_draw_of_the_wrong_length_is_refused(network: Any) -> None:
    gated = network("mlp").gated()
    message = r"flat vector of 1184 gates, .* got shape \(5,\)"
    with pytest.raises(ValueError, match=message), gated.drawn(torch.ones(5)):
        pass


# Thresholds


def test_every_group_has_its_own_valley() -> None:
    gated = sparsify(MLP((4, 4, 2)), lam=0.0, threshold="valley", gate=ScaledSigmoid(1))
    pi = torch.tensor([0.01, 0.02, 0.3, 0.97, 0.01, 0.6, 0.97, 0.98])
    gated.phi.data = torch.logit(pi)
    expected = torch.tensor([0.0, 0.0, 0.0, 0.97, 0.0, 0.6, 0.97, 0.98])  # tau = 0.65 and 0.325
    assert_close(gated.deterministic(), expected)


@pytest.mark.parametrize("tau", [0.2, 0.7])
def test_a_number_is_the_threshold_of_every_gate(tau: float) -> None:
    gated = sparsify(MLP((4, 4, 2)), lam=0.0, threshold=tau, gate=ScaledSigmoid(1))
    gated.phi.data = torch.linspace(-3, 3, 8)
    pi = torch.sigmoid(gated.phi.data)
    assert_close(gated.deterministic(), torch.where(pi > tau, pi, 0.0))


# Warnings


@pytest.mark.parametrize("name", ["conv1", "conv2", "fc1", "fc2"])
def test_an_empty_group_is_named_once(name: str, network: Any) -> None:
    net = network("lenet5")
    gated = net.gated()
    draw = Draw(gated.layout, net.gates(0, empty=[name]))
    with pytest.warns(EmptyGroupWarning, match=f"every unit of group '{name}' is closed"):
        gated.warn_of_empty(draw)
    gated.warn_of_empty(draw)  # a second warning would be an error


def test_every_empty_group_has_its_own_warning(network: Any) -> None:
    net = network("lenet5")
    with pytest.warns(EmptyGroupWarning) as seen, net.gated().drawn(0 * net.gates(0)):
        pass
    named = [re.search("group '(.*)' is", str(warning.message))[1] for warning in seen]
    assert named == ["conv1", "conv2", "fc1", "fc2"]


# Saving, copying, casting


@pytest.mark.parametrize("name", NETWORKS)
def test_a_state_dict_brings_the_whole_state(name: str, network: Any, loss: Any) -> None:
    net = network(name)
    gated = net.gated(z=net.gates(0, fractional=True))
    loss(gated, net)  # running statistics that are not those of the start
    other = Gated(copy.deepcopy(net.plain), net.plain.groups(), gated.method).double()
    other.load_state_dict(gated.state_dict(), strict=True)
    assert torch.equal(other.eval()(net.x), gated.eval()(net.x))


def test_a_state_dict_holds_phi_the_model_and_settings_and_no_more(network: Any) -> None:
    net = network("wrn")
    keys = {f"model.{key}" for key in net.plain.state_dict()}
    gated = net.gated()
    phi = {f"phi.{group.name}" for group in gated.groups}
    assert set(gated.state_dict()) == keys | phi | {"_extra_state"}  # the settings


@pytest.mark.parametrize("cast", ["bfloat16", "half"])
def test_half_precision_leaves_phi_and_sizes_in_float32(cast: str) -> None:
    gated = sparsify(MLP((4, 3, 5001)), method="l0-arm", lam=0.1)
    phi, sizes = gated.phi.detach().clone(), gated.sizes.clone()
    getattr(gated, cast)()
    assert gated.model.fc1.weight.dtype == getattr(torch, cast)
    assert torch.equal(gated.phi, phi)
    assert torch.equal(gated.sizes, sizes)


def test_a_bfloat16_model_trains_float32_gates(network: Any, loss: Any) -> None:
    net = network("lenet5", torch.bfloat16)
    net.dtype = torch.float32  # of the gates
    gated = net.gated(lam=0.1)
    gated.bfloat16()
    total = loss(gated, net).total
    total.backward()
    assert (total.dtype, gated.phi.grad.dtype) == (torch.float32, torch.float32)
    assert gated.model.fc1.weight.grad.dtype == torch.bfloat16


def test_double_makes_everything_double(network: Any, loss: Any) -> None:
    net = network("lenet5", torch.float32)
    gated = net.gated().double()
    net.x = net.x.double()
    total = loss(gated, net).total
    total.backward()
    assert {p.grad.dtype for p in gated.parameters()} == {total.dtype} == {torch.float64}


def test_autocast_keeps_phi_and_the_losses_in_float32(network: Any, loss: Any) -> None:
    net = network("lenet5", torch.float32)
    gated = net.gated()
    exact = loss(gated, net)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = loss(gated, net)
    rough.total.backward()
    assert rough.total.dtype == gated.phi.grad.dtype == torch.float32
    assert_close(rough.data, exact.data, rtol=1e-2, atol=1e-2)


# Repeatability


def ten_steps() -> list[Tensor]:
    torch.manual_seed(3)
    digits = mnist_mini()
    gated = sparsify(LeNet5(), method="l0-arm", lam=0.1 / 8000)
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=1e-3, gate_lr=1e-2))
    images = digits.train_images[:200, None].float().split(20)
    for x, y in zip(images, digits.train_labels[:200].split(20), strict=True):
        optimizer.zero_grad()
        loss = gated.loss(lambda x=x, y=y: F.cross_entropy(gated(x / 255), y))
        loss.total.backward()
        optimizer.step()
    return [p.detach() for p in gated.parameters()]


def test_a_seeded_run_repeats_bit_for_bit() -> None:
    assert all(map(torch.equal, ten_steps(), ten_steps()))


# Parameters for an optimizer


def test_phi_has_its_own_group_without_weight_decay() -> None:
    gated = sparsify(MLP((4, 3, 2)), lam=0.1)
    weights, phi = gated.parameter_groups(lr=0.1, gate_lr=0.2, weight_decay=0.3)
    assert list(map(id, weights["params"])) == list(map(id, gated.model.parameters()))
    assert (weights["lr"], weights["weight_decay"]) == (0.1, 0.3)
    assert phi["params"] == [gated.phi]
    assert (phi["lr"], phi["weight_decay"]) == (0.2, 0.0)


def test_frozen_weights_are_not_offered_to_an_optimizer() -> None:
    model = MLP((4, 3, 2))
    model.fc1.requires_grad_(False)
    weights, _ = sparsify(model, lam=0.1).parameter_groups()
    assert len(weights["params"]) == 2


# Bad input


@pytest.mark.parametrize("value", [torch.ones(3), torch.ones(2, 2), 1.0, None, torch.tensor(1j)])
def test_a_loss_that_is_no_scalar_is_refused(value: Any) -> None:
    gated = sparsify(MLP((4, 3, 2)), lam=0.1)
    with pytest.raises(
        ValueError, match=r"must return a real scalar tensor, got .*; reduce it, e\.g\."
    ):
        gated.loss(lambda: value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_not_finite_is_refused(value: float) -> None:
    gated = sparsify(WideResNet(10, 1), lam=0.1)
    before = bits(gated)
    x = torch.rand(2, 3, 32, 32)
    with pytest.raises(ValueError, match=f"the data loss is {value}; parameters and buffers"):
        gated.loss(lambda: gated(x).sum().detach() * 0 + value)
    assert_close(bits(gated), before, rtol=0, atol=0)
    assert all(p.grad is None for p in gated.parameters())


@pytest.mark.parametrize("tau", [0.0, 1.0, -1, 2, "median"])
def test_a_threshold_outside_0_1_is_refused(tau: Any) -> None:
    with pytest.raises(ValueError, match=f"strictly between 0 and 1, or be 'valley'; got {tau!r}"):
        sparsify(MLP((4, 3, 2)), lam=0.1, threshold=tau)


def test_an_unknown_execution_is_refused() -> None:
    message = "execution must be 'sliced' or 'masked'; got 'dense'"
    with pytest.raises(ValueError, match=message):
        sparsify(MLP((4, 3, 2)), lam=0.1, execution="dense")


# Released


USES: dict[str, Callable[[Gated, Tensor], Any]] = {
    "call": lambda gated, x: gated(x),
    "loss": lambda gated, x: gated.loss(lambda: gated(x).sum()),
    "drawn": lambda gated, x: gated.drawn(torch.ones_like(gated.phi)).__enter__(),
    "check": lambda gated, x: gated.check(x),
    "compact": lambda gated, x: gated.compact(),
    "uncertified": lambda gated, x: gated.compact(certify=False),
    "shrink": lambda gated, x: l0arm.shrink(gated),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("training", [True, False])
def test_a_released_gated_says_that_it_has_no_gates(use: Any, training: bool) -> None:
    model, x = MLP((4, 3, 2)), torch.randn(3, 4)
    gated = sparsify(model, model.groups(), lam=0.0, example_inputs=x).train(training)
    gated.phi.data = torch.tensor([9.0, -9.0, 9.0, 9.0, 9.0, -9.0, 9.0])
    assert gated.release() is gated.release() is model
    with pytest.raises(RuntimeError, match=r"was released.*sparsify\(gated\.model, ") as told:
        use(gated, x)
    assert not hasattr(told.value, "__notes__")
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    assert sparsify(model, lam=0.0).model is model


def test_a_plain_loop_trains_no_gates() -> None:
    gated = sparsify(MLP((4, 3, 2)), lam=0.0)
    gated.phi.data.fill_(9.0)
    gated(torch.randn(3, 4)).sum().backward()
    assert gated.phi.grad is None
    gated.loss(lambda: gated(torch.randn(3, 4)).sum()).total.backward()
    assert gated.phi.grad is not None


def test_fractions_for_tied_weights_are_refused_at_once() -> None:
    """A gate between 0 and 1 would act on them twice."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Embedding(10, 6), nn.Linear(6, 10, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.b(torch.relu(self.a(x)))
            return out

    group = Group("units", 6, reads=(Slice("b.weight", 1),), makes=(Slice("a.weight", 1),))
    for method in ("l0-hc", "sbp"):
        model = Tied()
        with pytest.raises(ValueError, match=r"group 'units' reads and makes one tensor"):
            sparsify(model, [group], method, lam=1e-3)
        assert not model.a._forward_hooks
    assert sparsify(Tied(), [group], "l0-disarm", lam=1e-3).groups[0].name == "units"
