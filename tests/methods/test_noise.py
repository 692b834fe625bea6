"""Noise on outputs has the distribution that noise on weights would give."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from l0arm import Gated, Group, Slice, sparsify
from l0arm.estimators import Deterministic, Pathwise
from l0arm.gates import Fixed, Gaussian
from l0arm.methods import Method
from l0arm.methods.noise import WeightNoise
from l0arm.models import MLP, LeNet5


def noisy(model: nn.Module, gate: object = None, *, biases: bool = True) -> Gated:
    method = Method(
        "noisy",
        gate or Fixed(),
        Pathwise() if gate else Deterministic(),
        extras=lambda gated: {"noise": WeightNoise(gated, -2.0, biases=biases)},
    )
    gated = sparsify(model, method=method).double()
    for parameter in gated.extras.parameters():
        parameter.data += torch.randn_like(parameter)
    return gated


def linear() -> nn.Module:
    return MLP((6, 5))


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Flatten(), nn.Linear(3 * 16, 2))


GROUPS = (Group("inputs", 2, reads=(Slice("0.weight", 1),)),)


@pytest.mark.parametrize("biases", [True, False])
def test_mean_and_variance_of_a_linear_layer(biases: bool) -> None:
    gated = noisy(linear(), biases=biases)
    x = torch.randn(4, 6, dtype=torch.float64)
    with torch.no_grad():
        draws = gated(x.repeat(4000, 1)).view(4000, 4, 5)
        dense = gated.model(x)
    variances = {k: p.detach().exp() for k, p in gated.extras["noise"].named_parameters()}
    assert set(variances) == {"fc1-weight", "fc1-bias"} if biases else {"fc1-weight"}
    variance = x**2 @ variances["fc1-weight"].T + variances.get("fc1-bias", 0.0)
    error = (variance / 4000).sqrt()
    assert float(((draws.mean(0) - dense) / error).abs().max()) < 4.5
    torch.testing.assert_close(draws.var(0), variance, rtol=0.12, atol=0)


def test_mean_and_variance_of_a_convolution_equal_those_of_noisy_weights() -> None:
    model = conv()
    noise = lambda gated: {"noise": WeightNoise(gated, -3.0)}  # noqa: E731
    method = Method("noisy", Fixed(), Deterministic(), extras=noise)
    gated = sparsify(model, GROUPS, method).double()
    x = torch.randn(1, 2, 4, 4, dtype=torch.float64)
    outputs: list[torch.Tensor] = []
    model[1].register_forward_pre_hook(lambda module, args: outputs.append(args[0].detach()))
    with torch.no_grad():
        gated(x.expand(3000, -1, -1, -1))
    sigma = torch.exp(torch.tensor(-1.5, dtype=torch.float64))
    weight, bias = model[0].weight.detach(), model[0].bias.detach()
    noise = sigma * torch.randn(3000, *weight.shape, dtype=torch.float64)
    by_weights = torch.stack([F.conv2d(x, weight + n, bias, padding=1) for n in noise])
    drawn = outputs[0][:, None]
    torch.testing.assert_close(drawn.var(0), by_weights.var(0), rtol=0.2, atol=0)
    assert float((drawn.mean(0) - by_weights.mean(0)).abs().max()) < 0.12


def test_every_example_has_its_own_noise() -> None:
    gated = noisy(linear())
    x = torch.ones(2, 6, dtype=torch.float64)
    one, two = gated(x)
    assert not torch.allclose(one, two)


def test_the_layer_with_pooling_inside_draws_before_it_pools() -> None:
    gated = noisy(LeNet5())
    gated.extras["noise"].get_parameter("conv1-weight").data.fill_(-60.0)
    gated.extras["noise"].get_parameter("conv1-bias").data.fill_(4.0)  # sigma = 7.4 on the bias
    sent: list[torch.Tensor] = []
    gated.model.conv2.register_forward_pre_hook(lambda module, args: sent.append(args[0].detach()))
    with torch.no_grad():
        gated(torch.zeros(20, 1, 28, 28, dtype=torch.float64))
    # The maximum of 4 independent normals has mean 1.029 sigma; of one alone, ReLU leaves 0.4.
    assert sent[0].mean().item() == pytest.approx(1.06 * 7.389, rel=0.05)


def test_gates_scale_the_noise_of_what_reads_them() -> None:
    gated = noisy(linear(), Gaussian(), biases=False)
    x = torch.randn(1, 6, dtype=torch.float64)
    z = torch.tensor([2.0, 0.5, 1.0, 3.0, 1.0, 1.0], dtype=torch.float64)
    with torch.no_grad(), gated.drawn(z):
        draws = gated(x.repeat(4000, 1))[:, None]
    sigma = gated.extras["noise"].get_parameter("fc1-weight").detach().exp().sqrt()
    variance = (x**2) @ (((sigma * z) ** 2).T)
    torch.testing.assert_close(draws.var(0), variance, rtol=0.12, atol=0)


@pytest.mark.parametrize("make", [lambda: MLP((6, 5, 4, 3)), LeNet5], ids=["mlp", "lenet5"])
@pytest.mark.parametrize("fractional", [False, True])
def test_sliced_and_masked_execution_agree_with_noise(
    make: Callable[[], nn.Module], fractional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)  # the same noise for any width
    gated = noisy(make())
    shape = (20, 1, 28, 28) if isinstance(gated.model, LeNet5) else (20, 6)
    x = torch.rand(shape, dtype=torch.float64)
    z = torch.rand(len(gated.phi), dtype=torch.float64)
    z = torch.where(z < 0.4, 0.0, z if fractional else 1.0)
    found = []
    for execution in ("sliced", "masked"):
        gated.execution = execution
        with torch.no_grad(), gated.drawn(z):
            found.append(gated(x))
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-10)
    gated.eval()
    with torch.no_grad(), gated.drawn(z):
        assert float((gated(x) - found[0]).abs().min()) > 0  # the other outputs had noise


def test_evaluation_has_no_noise_and_the_model_is_restored() -> None:
    gated = noisy(MLP((6, 5, 4)))
    x = torch.rand(3, 6, dtype=torch.float64)
    gated.eval()
    torch.testing.assert_close(gated(x), gated.model(x))
    gated.train()
    gated(x)
    assert "forward" not in vars(gated.model.fc1)
    torch.testing.assert_close(gated.model(x), copy.deepcopy(gated.model)(x))
    with pytest.raises(RuntimeError):
        gated(torch.rand(3, 7, dtype=torch.float64))
    assert "forward" not in vars(gated.model.fc1)


def test_the_gradient_reaches_the_variances() -> None:
    gated = noisy(MLP((6, 5, 4)), Gaussian())
    x = torch.rand(3, 6, dtype=torch.float64)
    gated.loss(lambda: gated(x).square().sum()).backward()
    for name, parameter in gated.extras.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all()
        assert float(parameter.grad.abs().max()) > 0


def test_an_unsupported_layer_is_refused() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(2, 3, 3), nn.Flatten(), nn.LazyLinear(2))
    model(torch.rand(1, 2, 4, 4))
    groups = [Group("inputs", 2, reads=(Slice("0.weight", 0),))]
    with pytest.raises(ValueError, match=r"'0.weight' of a ConvTranspose2d.*Linear, Conv1d"):
        sparsify(model, groups, "sparse-vd", lam=1.0)


@pytest.mark.parametrize("biases", [True, False])
def test_noise_by_matrix_products_is_that_of_stock_operators(
    biases: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise is 1 everywhere here, since the memory layouts of the two outputs differ."""
    gated = noisy(LeNet5(), biases=biases)
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)
    x = torch.randn(16, 1, 28, 28, dtype=torch.float64)
    found = []
    for smallest in (16, 17):  # the smallest batch for which matrix products are used
        monkeypatch.setattr("l0arm.models.pooled_conv.SMALL_BATCH", smallest)
        gated.zero_grad()
        y = gated(x)
        y.square().sum().backward()
        found.append([y] + [p.grad for p in gated.parameters() if p.grad is not None])
    assert len(found[0]) > 10
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", ["sparse-vd", "bc-gnj", "bc-ghs"])
def test_a_layer_with_a_forward_of_its_own_is_refused(method: str) -> None:
    model = MLP((6, 5, 3))
    model.fc1.forward = model.fc1.forward  # as torch.compile is put on a layer
    with pytest.raises(ValueError, match="'fc1' has a forward of its own"):
        sparsify(model, method=method, lam=1e-5)


def test_a_forward_that_is_set_later_is_restored_after_a_step() -> None:
    model, calls = MLP((6, 5, 3)), []
    gated = sparsify(model, method="sparse-vd", lam=1e-5)
    plain = model.fc1.forward
    model.fc1.forward = own = lambda x: (calls.append(1), plain(x))[1]
    gated.train()(torch.rand(2, 6))
    assert not calls  # the noisy forward replaces it
    assert vars(model.fc1)["forward"] is own
    gated.eval()(torch.rand(2, 6))
    assert calls == [1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("method", ["sparse-vd", "bc-gnj", "bc-ghs"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_in_half_precision_the_noise_still_learns(
    method: str, dtype: torch.dtype, when: str
) -> None:
    torch.manual_seed(0)
    model = MLP((6, 5, 3))
    gated = sparsify(model.to(dtype) if when == "before" else model, method=method, lam=1e-3)
    gated = gated.to(dtype)
    start = {name: p.detach().clone() for name, p in gated.extras.named_parameters()}
    assert all(p.dtype == torch.float32 for p in start.values())
    optimizer = torch.optim.SGD(gated.parameter_groups(1e-2, 1e-2))
    x = torch.rand(4, 6, dtype=dtype)
    for _ in range(3):
        optimizer.zero_grad()
        gated.loss(lambda: gated(x).float().square().mean()).backward()
        optimizer.step()
    for name, parameter in gated.extras.named_parameters():
        assert not torch.equal(parameter, start[name])
        assert parameter.isfinite().all()
